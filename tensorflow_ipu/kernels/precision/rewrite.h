// Rewrites a program so that its numbers are those of the machine.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_REWRITE_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_REWRITE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "xla/hlo/builder/xla_computation.h"

namespace tensorflow_ipu::precision {

// The program as the marker in it asks; null where it has none, and stays what it is. Loops, branches and functions of
// it are rewritten as it is itself.
absl::StatusOr<std::shared_ptr<xla::XlaComputation>> Rewritten(const xla::XlaComputation& program);

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_REWRITE_H_
