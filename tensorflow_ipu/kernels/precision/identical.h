// Replica-invariance: which operations of a program compute the same on all replicas.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_IDENTICAL_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_IDENTICAL_H_

#include <unordered_map>
#include <vector>

#include "xla/hlo/ir/hlo_computation.h"
#include "xla/hlo/ir/hlo_instruction.h"
#include "xla/hlo/ir/hlo_module.h"

namespace tensorflow_ipu::precision {

// Replicas differ by the states of their feeds, random streams and host functions, and by their index. Arguments and
// variables count as equal, and so do the results of reductions and broadcasts over all replicas. A value differs if it
// depends on one that does, also by the branch or loop that it is in.
class Identical {
 public:
  explicit Identical(const xla::HloModule& module);

  bool Has(const xla::HloInstruction& operation) const;

 private:
  // Whether each element of a tuple differs; one entry for other values.
  using Differs = std::vector<bool>;

  Differs Computation(const xla::HloComputation& computation, const std::vector<Differs>& parameters, bool around);
  Differs Of(const xla::HloInstruction& operation, const std::vector<Differs>& parameters, bool around);
  Differs Loop(const xla::HloInstruction& loop, bool around);
  Differs Called(const xla::HloInstruction& call, bool around);

  std::unordered_map<const xla::HloInstruction*, Differs> differs_;
};

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_IDENTICAL_H_
