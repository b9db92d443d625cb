// Which operations of a program compute the same on all replicas.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_IDENTICAL_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_IDENTICAL_H_

#include <unordered_map>
#include <vector>

#include "xla/hlo/ir/hlo_computation.h"
#include "xla/hlo/ir/hlo_instruction.h"
#include "xla/hlo/ir/hlo_module.h"

namespace tensorflow_ipu::precision {

// What a replica has of its own comes into a program by the states of its feeds, random streams and functions of the
// host, and by the number of the replica. Arguments and variables are taken for the same; so is what all replicas have
// reduced or been sent. A value differs that depends on one that does, be it by the branch or the loop that it is in.
class Identical {
 public:
  explicit Identical(const xla::HloModule& module);

  bool Has(const xla::HloInstruction& operation) const;

 private:
  // Whether a value differs, or each element of a tuple.
  using Differs = std::vector<bool>;

  Differs Computation(const xla::HloComputation& computation, const std::vector<Differs>& parameters, bool around);
  Differs Of(const xla::HloInstruction& operation, const std::vector<Differs>& parameters, bool around);
  Differs Loop(const xla::HloInstruction& loop, bool around);
  Differs Called(const xla::HloInstruction& call, bool around);

  std::unordered_map<const xla::HloInstruction*, Differs> differs_;
};

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_IDENTICAL_H_
