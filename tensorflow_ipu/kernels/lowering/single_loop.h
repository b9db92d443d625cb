// Loops of one iteration, or of none, of which XLA knows neither.
//
// Nothing moves across their ends, and XLA does not begin what comes behind one before all that goes into it is there.
// What it carries stays in its memory. A custom call that returns the values in their memory would not do: ahead of it,
// XLA copies what an elementwise operation has made.
#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_SINGLE_LOOP_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_SINGLE_LOOP_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tensorflow_ipu {

// What a loop carries, on its way in or out.
struct Carried {
  xla::XlaOp behind;               // An int32 scalar that passes unchanged: it is known once the loop has ended.
  std::vector<xla::XlaOp> values;  // They have the same shapes throughout.
};

// The iteration. Of `behind`, what it returns has to depend on what it was given.
using Iteration = std::function<Carried(xla::XlaBuilder* builder, const Carried& carried)>;

// Adds a loop of one iteration that computes next to nothing. Custom calls say whether it goes on: where XLA's own
// operations count, it compiles each such loop to code of its own.
absl::StatusOr<Carried> SingleLoop(const Carried& begin, const Iteration& iteration);

// Adds a loop of one iteration where `runs`, and of none where not, which XLA may not know. It needs no code, and no
// call.
absl::StatusOr<Carried> LoopIf(xla::XlaOp runs, const Carried& begin, const Iteration& iteration);

// The values, of which XLA does not know where they come from.
std::vector<xla::XlaOp> Barred(const std::vector<xla::XlaOp>& values);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_SINGLE_LOOP_H_
