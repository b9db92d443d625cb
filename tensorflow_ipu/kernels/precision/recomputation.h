// Recomputes values of an HLO computation in another one, from values in memory.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_RECOMPUTATION_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_RECOMPUTATION_H_

#include <unordered_map>
#include <vector>

#include "tensorflow_ipu/kernels/precision/emit.h"

namespace tensorflow_ipu::precision {

// The other computation has one parameter: a tuple of the values that are not recomputed, such as parameters and the
// results of products. XLA has most of these in memory anyway.
class Recomputation {
 public:
  // Adds a computation to the module that can recompute the values of `wanted`. The caller sets its root.
  Recomputation(xla::HloComputation* from, const std::vector<Value>& wanted);

  // The recomputed value.
  Value Of(Value value) const { return made_.at(value); }

  xla::HloComputation* computation() const { return computation_; }

  // The argument of the other computation, as a tuple in `from`.
  Value Operand() const { return Emit(from_).Tuple(taken_); }

 private:
  xla::HloComputation* const from_;
  xla::HloComputation* computation_ = nullptr;
  std::vector<Value> taken_;
  std::unordered_map<const xla::HloInstruction*, Value> made_;
};

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_RECOMPUTATION_H_
