// Conversions to 8-bit floats (f8): `ops/_f8_codes.py` builds each from operations on float32, and marks two of these
// for the rewrite: the one that rounds, and the one that tells overflow.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_QUARTER_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_QUARTER_H_

#include "tensorflow_ipu/kernels/precision/rounding.h"
#include "xla/hlo/ir/hlo_instruction.h"

namespace tensorflow_ipu::precision {

// Whether an instruction rounds magnitudes to integers, as a step of a conversion.
bool RoundsToQuarter(const xla::HloInstruction& operation);

// Whether an instruction has a number in each element that is beyond the range of its format, and 0 in others.
bool OverflowsQuarter(const xla::HloInstruction& operation);

// Magnitudes rounded up or down to integers by chance, in place of `operation`: see `RoundStochastically`.
Value RoundedToQuarter(const Emit& emit, const xla::HloInstruction& operation, Key key, uint64_t site);

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_QUARTER_H_
