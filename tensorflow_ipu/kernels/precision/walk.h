// Goes through all computations of a program in order, and has operations rounded and checked.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_WALK_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_WALK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "tensorflow_ipu/kernels/precision/checks.h"
#include "tensorflow_ipu/kernels/precision/identical.h"
#include "tensorflow_ipu/kernels/precision/options.h"
#include "tensorflow_ipu/kernels/precision/scope.h"
#include "tensorflow_ipu/kernels/precision/wide.h"
#include "xla/hlo/ir/hlo_module.h"

namespace tensorflow_ipu::precision {

class Walk {
 public:
  explicit Walk(const Options& options) : options_(options) {}

  // Rewrites the entry computation, which has `marker`, and all that it calls.
  absl::Status Program(xla::HloModule* module, Value marker);

 private:
  // Rewrites a computation, and returns the scope at its end.
  absl::StatusOr<Scope> Computation(xla::HloComputation* computation, Scope scope);
  absl::Status Loop(Value loop, Scope* scope);
  absl::Status Branches(Value conditional, Scope* scope);
  absl::Status Call(Value call, Scope* scope);
  void Operation(Value operation, const Scope& scope, WideValues* wide, Checks* checks);
  Rounding RoundingOf(const xla::HloInstruction& operation) const;
  bool IsShared(const xla::HloInstruction& operation) const;
  Key KeyFor(const xla::HloInstruction& operation, const Scope& scope) const;
  // Whether its half partial sums are rounded stochastically.
  bool HasRandomPartials(const xla::HloInstruction& operation) const;
  bool Concerns(const xla::HloInstruction& operation) const;
  bool Concerns(const xla::HloComputation& computation);

  const Options& options_;
  std::unique_ptr<const Identical> identical_;  // Null if it is not needed.
  uint64_t parts_ = 0;                          // Operations and computations so far, for keys of their own.
  std::map<const xla::HloComputation*, bool> concerns_;
};

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_WALK_H_
