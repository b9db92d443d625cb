// Recomputes values of an HLO computation in another one, from what is in memory.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_RECOMPUTATION_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_RECOMPUTATION_H_

#include <unordered_map>
#include <vector>

#include "tensorflow_ipu/kernels/precision/emit.h"

namespace tensorflow_ipu::precision {

// The other computation has one parameter, a tuple of the values that it does not recompute: parameters, and results of
// operations that are not elementwise, such as products. XLA has most of these in memory in any case.
class Recomputation {
 public:
  // Adds the other computation, which can recompute the values of `wanted`, to the module. Its root is the caller's to
  // set.
  Recomputation(xla::HloComputation* from, const std::vector<Value>& wanted);

  // What a value of `from` is in the other computation.
  Value Of(Value value) const { return made_.at(value); }

  xla::HloComputation* computation() const { return computation_; }

  // The argument to call the other computation with: the tuple, made in `from`.
  Value Operand() const { return Emit(from_).Tuple(taken_); }

 private:
  xla::HloComputation* const from_;
  xla::HloComputation* computation_ = nullptr;
  std::vector<Value> taken_;
  std::unordered_map<const xla::HloInstruction*, Value> made_;
};

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_RECOMPUTATION_H_
