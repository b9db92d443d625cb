// Operations of float16 in float32: what their results were before they are rounded.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_WIDE_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_WIDE_H_

#include <unordered_map>

#include "tensorflow_ipu/kernels/precision/emit.h"

namespace tensorflow_ipu::precision {

// Whether an operation computes: its exact result may be no number of its type. What moves, compares or selects is
// none.
bool Computes(const xla::HloInstruction& operation);

// Tensors of float16 that are known in float32.
using WideValues = std::unordered_map<const xla::HloInstruction*, Value>;

// The operation, which computes float16, with operands and result of float32: products and sums accumulate there, and
// nothing is rounded in between. Operands that `known` has are taken from there.
Value Widened(const Emit& emit, const xla::HloInstruction& operation, const WideValues& known);

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_WIDE_H_
