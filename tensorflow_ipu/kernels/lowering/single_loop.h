// Loops of one iteration or none, whose trip count XLA does not know. XLA moves nothing across their ends, and starts
// nothing after a loop before all of its inputs are there. Carried values stay in their memory; a custom call that
// returns its operands in place would not do, since XLA copies the results of elementwise operations ahead of it.
#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_SINGLE_LOOP_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_SINGLE_LOOP_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tensorflow_ipu {

struct Carried {
  xla::XlaOp behind;               // An int32 scalar that passes unchanged: it is known once the loop has ended.
  std::vector<xla::XlaOp> values;  // Their shapes do not change.
};

// The iteration. The `behind` that it returns has to depend on the one that it is given.
using Iteration = std::function<Carried(xla::XlaBuilder* builder, const Carried& carried)>;

// Adds a loop of one iteration. Custom calls decide whether it goes on: XLA would compile code for each loop that
// counts by its own operations.
absl::StatusOr<Carried> SingleLoop(const Carried& begin, const Iteration& iteration);

// Adds a loop of one iteration if `runs`, else of none. It needs neither code nor a call.
absl::StatusOr<Carried> LoopIf(xla::XlaOp runs, const Carried& begin, const Iteration& iteration);

// The values behind an optimization barrier.
std::vector<xla::XlaOp> Barred(const std::vector<xla::XlaOp>& values);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_SINGLE_LOOP_H_
