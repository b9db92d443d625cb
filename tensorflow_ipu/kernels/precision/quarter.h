// Conversions to 8-bit floats (f8). `ops/_f8_codes.py` builds each from operations on float32, and marks the one that
// rounds and the one that detects overflow.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_QUARTER_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_QUARTER_H_

#include "tensorflow_ipu/kernels/precision/rounding.h"
#include "xla/hlo/ir/hlo_instruction.h"

namespace tensorflow_ipu::precision {

// Whether an instruction rounds magnitudes to integers in a conversion to f8.
bool RoundsToQuarter(const xla::HloInstruction& operation);

// Whether an instruction yields the elements that overflow in a conversion to f8, and 0 for others.
bool OverflowsQuarter(const xla::HloInstruction& operation);

// Rounds magnitudes stochastically to integers, in place of `operation`: see `RoundStochastically`.
Value RoundedToQuarter(const Emit& emit, const xla::HloInstruction& operation, Key key, uint64_t site);

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_QUARTER_H_
