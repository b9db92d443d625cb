// The operations of a computation that may stop the program.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_CHECKS_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_CHECKS_H_

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorflow_ipu/kernels/precision/options.h"
#include "tensorflow_ipu/kernels/precision/scope.h"

namespace tensorflow_ipu::precision {

// The custom call that is told which operations stop the program, and says whether one does: `ffi/precision_check.cc`.
constexpr char kCheck[] = "ipu_half_check";

// Operations on the elements of tensors of one shape, each of which takes results of others, are a group: one pass over
// all elements finds the first of them that stops the program. Its result is one word, 0 where none does: see `Word`.
class Checks {
 public:
  // `operations` are those of the computation before it is rewritten, in their order.
  Checks(const Options& options, const std::vector<Value>& operations);

  // Notes an operation that computes, and its result in float32 before it is rounded.
  void Note(const xla::HloInstruction& operation, Value wide);

  // Whether the program has been stopped, by this computation or before.
  Value Failed(const Emit& emit, const Scope& scope);

 private:
  struct Site {
    Value wide;
    bool elementwise;
    bool converts;     // The operation is a conversion to float16.
    int64_t pole;      // Which operand makes the result infinite when it is 0; -1 for none.
    uint32_t limit;    // From which magnitude on a result may stop the program.
    std::string line;  // What there is to know of it.
  };
  using Sources = std::vector<int64_t>;

  const xla::HloInstruction* GroupOf(const xla::HloInstruction* operation) const;
  Sources SourcesOf(const xla::HloInstruction& operation, Value wide);
  Value Word(const Emit& emit, const std::vector<Site>& sites);
  Value Largest(const Emit& emit, Value words);

  const Options& options_;
  std::unordered_map<const xla::HloInstruction*, const xla::HloInstruction*> joined_;  // To another of the same group.
  std::map<const xla::HloInstruction*, std::vector<std::vector<Site>>> groups_;  // In parts that a word can number.
  std::vector<const xla::HloInstruction*> order_;                                // Of `groups_`.
  std::vector<Value> sources_;  // What comes from elsewhere: it may hold a NaN that no operation here has made.
  std::unordered_map<const xla::HloInstruction*, Sources> from_;  // The sources that an operation depends on.
  int64_t count_ = 0;                                             // Of all sites.
  xla::HloComputation* larger_ = nullptr;
};

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_CHECKS_H_
