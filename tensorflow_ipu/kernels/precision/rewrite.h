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

// Returns the program with its loops, branches and functions rewritten as its marker (see `kMarker`) specifies. Without
// a marker, the program is rewritten so that XLA computes float16 faster. Returns null if there is nothing to rewrite.
absl::StatusOr<std::shared_ptr<xla::XlaComputation>> Rewritten(const xla::XlaComputation& program);

// The operations of a program whose results are the same on all replicas (replica-invariant).
//
// Replicas differ in the states of their feeds, random streams and host functions, and in their index. Arguments and
// variables count as equal, and so do the results of reductions and broadcasts over all replicas. A value differs if it
// depends on a value that differs, or if it is in a branch or loop that depends on one. Example: `all_reduce(x) * w` is
// invariant even if `x` differs; `w * replica_index` is not.
class ReplicaInvariance {
 public:
  explicit ReplicaInvariance(const xla::HloModule& module);

  bool Holds(const xla::HloInstruction& operation) const;

 private:
  // Each element is true if that element of a tuple differs. Other values have one element.
  using Differs = std::vector<bool>;

  Differs Computation(const xla::HloComputation& computation, const std::vector<Differs>& parameters, bool around);
  Differs Of(const xla::HloInstruction& operation, const std::vector<Differs>& parameters, bool around);
  Differs Loop(const xla::HloInstruction& loop, bool around);
  Differs Called(const xla::HloInstruction& call, bool around);

  std::unordered_map<const xla::HloInstruction*, Differs> differs_;
};

// Replaces products and convolutions of float16 operands by calls of `numerics/partials.h`, if an attribute
// `ipu_partials_type` or the options set the type of partial sums. A call returns the last partial sum as float32,
// which is then converted to the type of the result.
absl::Status RewritePartials(const Options& options, xla::HloModule* module);

// Returns true if an instruction is such a call with half partial sums.
bool HasHalfPartials(const xla::HloInstruction& instruction);

// Returns the same call with stochastic rounding of its partial sums.
Value WithRandomPartials(const Emit& emit, const xla::HloInstruction& call, Key key);

}  // namespace tensorflow_ipu::precision
