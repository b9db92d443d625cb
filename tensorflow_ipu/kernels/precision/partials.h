// Products and convolutions of half precision with the partial sums that a program asks for.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_PARTIALS_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_PARTIALS_H_

#include "absl/status/statusor.h"
#include "tensorflow_ipu/kernels/precision/emit.h"
#include "tensorflow_ipu/kernels/precision/options.h"
#include "tensorflow_ipu/kernels/precision/rounding.h"
#include "xla/hlo/ir/hlo_instruction.h"
#include "xla/hlo/ir/hlo_module.h"

namespace tensorflow_ipu::precision {

// Replaces products and convolutions of float16 operands by calls of `core/partials.h`, where an attribute
// `ipu_partials_type` or the options set the type of partial sums. A call returns the last partial sum as float32,
// which is then converted to the type of the result. Returns whether there were any.
absl::StatusOr<bool> RewritePartials(const Options& options, xla::HloModule* module);

// Whether an instruction is such a call with half partial sums.
bool HasHalfPartials(const xla::HloInstruction& instruction);

// The same call with stochastic rounding of its partial sums.
Value WithRandomPartials(const Emit& emit, const xla::HloInstruction& call, Key key);

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_PARTIALS_H_
