// Fault observability: which results must be checked so that no NaN or infinity that stops a program is missed.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_EXPOSED_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_EXPOSED_H_

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tensorflow_ipu/kernels/precision/emit.h"
#include "tensorflow_ipu/kernels/precision/options.h"

namespace tensorflow_ipu::precision {

// A bit set of the faults of an operation that stop a program.
using Faults = uint32_t;
constexpr Faults kNan = 1;
constexpr Faults kInfinity = 2;

bool IsFloat(const xla::Shape& shape);

// The operand that makes the result infinite when it is 0; -1 if there is none.
int64_t PoleOperand(xla::HloOpcode opcode);

// The faults that an operation can have when its operands have none, as far as the options stop at them.
Faults FaultsOf(const Options& options, const xla::HloInstruction& operation);

// An infinity or a NaN propagates through sums and products. So only the last results have to be checked, and the
// operands of operations that can hide one, such as maxima, or exp of -inf.
class Exposed {
 public:
  // `operations` are those of the computation before it is rewritten, in order.
  Exposed(const Options& options, const std::vector<Value>& operations);

  // The faults of an operation that no later result would show. If there are any, its own result is checked.
  Faults Of(const xla::HloInstruction& operation) const {
    const auto found = exposed_.find(&operation);
    return found == exposed_.end() ? 0 : found->second;
  }

 private:
  std::unordered_map<const xla::HloInstruction*, Faults> exposed_;
};

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_EXPOSED_H_
