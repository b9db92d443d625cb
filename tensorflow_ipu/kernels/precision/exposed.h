// Which results of a computation have to be checked so that no NaN or infinity that stops a program goes unseen.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_EXPOSED_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_EXPOSED_H_

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tensorflow_ipu/kernels/precision/emit.h"
#include "tensorflow_ipu/kernels/precision/options.h"

namespace tensorflow_ipu::precision {

// What an operation may make that stops a program: some of these bits.
using Faults = uint32_t;
constexpr Faults kNan = 1;
constexpr Faults kInfinity = 2;

// Whether a shape is of numbers that are looked at.
bool IsFloat(const xla::Shape& shape);

// Which operand makes the result infinite when it is 0; -1 for operations that have no such.
int64_t PoleOperand(xla::HloOpcode opcode);

// The faults that an operation can have of its own, where its operands have none: those of them that the options stop
// at.
Faults FaultsOf(const Options& options, const xla::HloInstruction& operation);

// An infinity or a NaN propagates through sums and products into all that is computed from it. So it is enough to check
// the last results, and the operands of operations that can hide one: a maximum, say, or exp of -inf.
class Exposed {
 public:
  // `operations` are those of the computation before it is rewritten, in their order.
  Exposed(const Options& options, const std::vector<Value>& operations);

  // The faults of an operation that no result behind it would show. Where there are some, its own result is checked.
  Faults Of(const xla::HloInstruction& operation) const {
    const auto found = exposed_.find(&operation);
    return found == exposed_.end() ? 0 : found->second;
  }

 private:
  std::unordered_map<const xla::HloInstruction*, Faults> exposed_;
};

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_EXPOSED_H_
