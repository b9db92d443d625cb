// Rewrites a program so that it emulates the machine's arithmetic.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "tensorflow_ipu/kernels/precision/emit.h"
#include "tensorflow_ipu/kernels/precision/rounding.h"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/hlo/ir/hlo_computation.h"
#include "xla/hlo/ir/hlo_instruction.h"
#include "xla/hlo/ir/hlo_module.h"

namespace tensorflow_ipu::precision {

// The program, with its loops, branches and functions, rewritten as its marker asks; without one, so that XLA computes
// float16 faster. Null if nothing is to be rewritten.
absl::StatusOr<std::shared_ptr<xla::XlaComputation>> Rewritten(const xla::XlaComputation& program);

// Replica-invariance: which operations of a program compute the same on all replicas.
//
// Replicas differ by the states of their feeds, random streams and host functions, and by their index. Arguments and
// variables count as equal, and so do the results of reductions and broadcasts over all replicas. A value differs if it
// depends on one that does, also by the branch or loop that it is in.
class ReplicaInvariance {
 public:
  explicit ReplicaInvariance(const xla::HloModule& module);

  bool Holds(const xla::HloInstruction& operation) const;

 private:
  // Whether each element of a tuple differs; one entry for other values.
  using Differs = std::vector<bool>;

  Differs Computation(const xla::HloComputation& computation, const std::vector<Differs>& parameters, bool around);
  Differs Of(const xla::HloInstruction& operation, const std::vector<Differs>& parameters, bool around);
  Differs Loop(const xla::HloInstruction& loop, bool around);
  Differs Called(const xla::HloInstruction& call, bool around);

  std::unordered_map<const xla::HloInstruction*, Differs> differs_;
};

// Replaces products and convolutions of float16 operands by calls of `core/partials.h`, where an attribute
// `ipu_partials_type` or the options set the type of partial sums. A call returns the last partial sum as float32,
// which is then converted to the type of the result.
absl::Status RewritePartials(const Options& options, xla::HloModule* module);

// Whether an instruction is such a call with half partial sums.
bool HasHalfPartials(const xla::HloInstruction& instruction);

// The same call with stochastic rounding of its partial sums.
Value WithRandomPartials(const Emit& emit, const xla::HloInstruction& call, Key key);

}  // namespace tensorflow_ipu::precision
