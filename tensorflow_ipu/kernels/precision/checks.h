// The detection of operations that stop a program by a floating-point exception.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tensorflow_ipu/kernels/precision/emit.h"
#include "tensorflow_ipu/kernels/precision/rounding.h"

namespace tensorflow_ipu::precision {

class Recomputation;

// A bit set of special values, which may stop a program.
using Specials = uint32_t;
constexpr Specials kNan = 1;
constexpr Specials kInfinity = 2;

// The custom call that scans results for values that may stop the program, and decides whether an operation stops it:
// `precision/check_handlers.cc`.
constexpr char kCheck[] = "ipu_half_check";

// Finds the operations that stop a program, at little cost as long as none does.
//
// Each run scans a few results for infinities and NaNs; see `UnobservedSpecials`. If there are none, no operation can
// have stopped the program. Only otherwise are the elementwise operations recomputed, to find the operation that
// returned the first of them. Example: for `y = exp(x - max(x))`, a run scans `y` and `x - max(x)`; only after an
// infinity it recomputes both, with `x` and `max(x)` as parameters.
//
// The recomputation is a separate program, which is compiled when it is first needed: compiling it takes three times as
// long as compiling the program. Operations of the same shape that depend on each other are a group. One pass over all
// elements finds the first operation of a group that stops the program, as one word; see `StopCodes`.
class Checks {
 public:
  // `operations` are the operations of the computation before it is rewritten, in order.
  Checks(const Options& options, const std::vector<Value>& operations);

  // Records an operation. `wide` is its result in float32 before rounding, `judged` is the value to check, and `result`
  // is the rewritten result.
  void Note(const xla::HloInstruction& operation, Value wide, Value judged, Value result);

  // Returns a flag that is true if the program was stopped by the operations recorded so far, or earlier. May be called
  // repeatedly.
  Value Failed(const Emit& emit, const Scope& scope);

 private:
  struct CheckedOperation {
    Value wide;
    Value judged;
    Value reaches = nullptr;  // See `Reaches`.
    bool elementwise;
    bool converts;     // True for conversions to float16.
    int64_t pole;      // See `PoleOperand`.
    uint32_t limit;    // The bits of the smallest magnitude that may stop the program.
    std::string line;  // Describes the operation, except for its sources.
    std::vector<Value> sources;
  };
  using CheckedOperations = std::vector<CheckedOperation>;

  const xla::HloInstruction* GroupOf(const xla::HloInstruction* operation);
  void ChooseScanned(const CheckedOperation& checked, Specials specials, Value result);
  Value Reaches(const Emit& emit, Value value);
  std::string Recompute(Recomputation* recomputed);
  Value StopCodes(const Emit& emit, const Recomputation& recomputed, const CheckedOperations& operations);

  const Options& options_;
  // By operation: the special values that later results do not show.
  const std::unordered_map<const xla::HloInstruction*, Specials> unobserved_;
  std::vector<Value> scanned_;
  std::vector<uint32_t> limits_;  // The limits of `scanned_`, as bits of their types.
  // Maps an operation to another operation of its group.
  std::unordered_map<const xla::HloInstruction*, const xla::HloInstruction*> joined_;
  // The parts of groups. A part has at most as many operations as a stop code distinguishes.
  std::vector<CheckedOperations> parts_;
  std::unordered_map<const xla::HloInstruction*, std::size_t> part_of_;  // The last part of each group.
  std::unordered_map<const xla::HloInstruction*, Value> reaches_;
  std::unordered_set<Value> made_;  // Conditions that `Reaches` added. It must not count them as users.
  int64_t count_ = 0;               // The number of checked operations.
};

}  // namespace tensorflow_ipu::precision
