// Finds the operations of a computation that stop the program.
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

// A bit set of the faults of an operation that stop a program.
using Faults = uint32_t;
constexpr Faults kNan = 1;
constexpr Faults kInfinity = 2;

// The custom call that scans results for values that may stop the program, and decides whether an operation does:
// `precision/check_handlers.cc`.
constexpr char kCheck[] = "ipu_half_check";

// Each run scans a few results for infinities and NaNs; see `UnobservedFaults`. Only if there are some, the elementwise
// operations are recomputed to find which of them made them, by a program of its own that is compiled then: it takes
// three times as long to compile as the program that is checked. Operations of one shape that depend on each other are
// a group: one pass over all elements finds the first of them that stops the program, as one word; see `FaultCodes`.
class Checks {
 public:
  // `operations` are those of the computation before it is rewritten, in order.
  Checks(const Options& options, const std::vector<Value>& operations);

  // Notes an operation: `wide` is its result in float32 before rounding, `judged` the value to check, `result` the
  // rewritten result.
  void Note(const xla::HloInstruction& operation, Value wide, Value judged, Value result);

  // Whether the program has been stopped by what was noted so far or before. May be called repeatedly.
  Value Failed(const Emit& emit, const Scope& scope);

 private:
  struct CheckedOperation {
    Value wide;
    Value judged;
    Value reaches = nullptr;  // See `Reaches`.
    bool elementwise;
    bool converts;     // To float16.
    int64_t pole;      // See `PoleOperand`.
    uint32_t limit;    // The magnitude from which on a result may stop the program.
    std::string line;  // Describes the operation, except for its sources.
    std::vector<Value> sources;
  };
  using CheckedOperations = std::vector<CheckedOperation>;

  const xla::HloInstruction* GroupOf(const xla::HloInstruction* operation);
  void ChooseScanned(const CheckedOperation& checked, Faults faults, Value result);
  Value Reaches(const Emit& emit, Value value);
  std::string Recompute(Recomputation* recomputed);
  Value FaultCodes(const Emit& emit, const Recomputation& recomputed, const CheckedOperations& operations);

  const Options& options_;
  const std::unordered_map<const xla::HloInstruction*, Faults> unobserved_;  // By later results.
  std::vector<Value> scanned_;
  std::vector<uint32_t> limits_;  // Of `scanned_`, in their type.
  // From an operation to another of its group.
  std::unordered_map<const xla::HloInstruction*, const xla::HloInstruction*> joined_;
  std::vector<CheckedOperations> parts_;  // Of groups: so many operations as a fault code distinguishes.
  std::unordered_map<const xla::HloInstruction*, std::size_t> part_of_;  // The last one of each group.
  std::unordered_map<const xla::HloInstruction*, Value> reaches_;
  std::unordered_set<Value> made_;  // By `Reaches`, and no users of what it looks at.
  int64_t count_ = 0;               // Of all checked operations.
};

}  // namespace tensorflow_ipu::precision
