// The operations of a computation that may stop the program.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_CHECKS_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_CHECKS_H_

#include <string>
#include <unordered_map>
#include <vector>

#include "tensorflow_ipu/kernels/precision/options.h"
#include "tensorflow_ipu/kernels/precision/scope.h"

namespace tensorflow_ipu::precision {

// The custom call that learns how large the results of operations were, and says whether one of them stops the program.
constexpr char kCheck[] = "ipu_half_check";

class Checks {
 public:
  // `operations` are those of the computation before it is rewritten, in their order.
  Checks(const Options& options, const std::vector<Value>& operations);

  // Notes an operation that computes, and its result in float32 before it is rounded.
  void Note(const Emit& emit, const xla::HloInstruction& operation, Value wide);

  // Notes that a computation that this one called has ended so.
  void NoteCalled(const Emit& emit, Value failed);

  // Whether the program has been stopped, by this computation or before.
  Value Failed(const Emit& emit, const Scope& scope);

 private:
  using Set = std::vector<bool>;

  const Options& options_;
  std::vector<Value> sources_;  // What comes from elsewhere: it may hold a NaN that no operation here has made.
  std::unordered_map<const xla::HloInstruction*, Set> from_;  // Which sources an operation depends on.
  std::vector<Value> largest_;  // u32: the bits of the largest magnitude of each result that was noted.
  std::string sites_;           // What there is to know of these, a line each.
  Value called_ = nullptr;
};

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_CHECKS_H_
