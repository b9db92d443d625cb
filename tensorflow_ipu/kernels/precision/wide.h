// Operations of float16 in float32: their results before rounding.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_WIDE_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_WIDE_H_

#include <unordered_map>

#include "tensorflow_ipu/kernels/precision/emit.h"

namespace tensorflow_ipu::precision {

// Whether an operation computes, so that its exact result may have to be rounded. Moves, comparisons and selections do
// not.
bool Computes(const xla::HloInstruction& operation);

// Tensors of float16 that are known in float32.
using WideValues = std::unordered_map<const xla::HloInstruction*, Value>;

// The operation, of float16, with operands and result of float32: it accumulates in float32 and rounds nothing in
// between. Operands in `known` are taken from there.
Value Widened(const Emit& emit, const xla::HloInstruction& operation, const WideValues& known);

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_WIDE_H_
