// Rewrites a program so that it emulates the machine's arithmetic.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_REWRITE_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_REWRITE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "xla/hlo/builder/xla_computation.h"

namespace tensorflow_ipu::precision {

// The program, with its loops, branches and functions, rewritten as its marker asks; null if it has no marker.
absl::StatusOr<std::shared_ptr<xla::XlaComputation>> Rewritten(const xla::XlaComputation& program);

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_REWRITE_H_
