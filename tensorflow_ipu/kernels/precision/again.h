// Values of a computation, computed again in one of their own from what is in memory.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_AGAIN_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_AGAIN_H_

#include <unordered_map>
#include <vector>

#include "tensorflow_ipu/kernels/precision/emit.h"

namespace tensorflow_ipu::precision {

// The other computation takes one tuple, of the values that it does not compute again: what comes from outside, and the
// results of what is not made of its operands element by element. XLA has most of these in memory in any case.
class Again {
 public:
  // Adds the other computation to the module. What it returns is to be set.
  Again(xla::HloComputation* from, const std::vector<Value>& wanted);

  // The same value there.
  Value Of(Value value) const { return made_.at(value); }

  xla::HloComputation* computation() const { return computation_; }

  // What it takes, in the computation that the values are of.
  Value Operand() const { return Emit(from_).Tuple(taken_); }

 private:
  xla::HloComputation* const from_;
  xla::HloComputation* computation_ = nullptr;
  std::vector<Value> taken_;
  std::unordered_map<const xla::HloInstruction*, Value> made_;
};

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_AGAIN_H_
