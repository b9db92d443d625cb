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

// Puts calls of `core/partials.h` in the place of products and convolutions whose operands are float16: those with a
// type of partial sums of their own (the attribute `ipu_partials_type`), and those of the kinds that the options have
// one for. A call gives the last partial sum as float32, which is then converted to the type of the result. Returns
// whether there were any.
absl::StatusOr<bool> RewritePartials(const Options& options, xla::HloModule* module);

// Whether an instruction is such a call, of half partial sums.
bool HasHalfPartials(const xla::HloInstruction& instruction);

// The same call with its partial sums rounded at random, by a key of its own.
Value WithRandomPartials(const Emit& emit, const xla::HloInstruction& call, Key key);

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_PARTIALS_H_
