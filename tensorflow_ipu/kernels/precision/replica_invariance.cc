#include "tensorflow_ipu/kernels/precision/rewrite.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tensorflow_ipu/kernels/numerics/reduction.h"
#include "tensorflow_ipu/kernels/support/program_state.h"
#include "xla/hlo/ir/hlo_opcode.h"

namespace tensorflow_ipu::precision {

namespace {

using xla::HloOpcode;

std::size_t Size(const xla::Shape& shape) { return shape.IsTuple() ? shape.tuple_shapes().size() : 1; }

bool IsState(const xla::Shape& shape) {
  return shape.IsArray() && shape.element_type() == xla::S64 && shape.dimensions().size() == 1 &&
         shape.dimensions(0) == core::kProgramStateSize;
}

bool Any(const std::vector<bool>& values) { return std::find(values.begin(), values.end(), true) != values.end(); }

void Join(std::vector<bool>* values, const std::vector<bool>& others) {
  for (std::size_t i = 0; i < values->size(); ++i)
    (*values)[i] = (*values)[i] || others[std::min(i, others.size() - 1)];
}

// Returns true if a collective has the same results on all replicas; see `lowering/collective_ops.cc`.
bool IsOfAll(const xla::HloInstruction& call) {
  const std::string& attributes = call.raw_backend_config_string();
  const std::string local = absl::StrCat("reduction = ", static_cast<int>(core::Reduction::kLocal), " ");
  return call.IsCustomCall("ipu_collective") && absl::StrContains(attributes, "group_size = 0 ") &&
         !absl::StrContains(attributes, local);
}

}  // namespace

ReplicaInvariance::ReplicaInvariance(const xla::HloModule& module) {
  const xla::HloComputation& entry = *module.entry_computation();
  std::vector<Differs> parameters;
  for (const xla::HloInstruction* const parameter : entry.parameter_instructions()) {
    parameters.push_back(Differs(Size(parameter->shape()), IsState(parameter->shape())));
  }
  Computation(entry, parameters, false);
}

bool ReplicaInvariance::Holds(const xla::HloInstruction& operation) const {
  const auto found = differs_.find(&operation);
  return found != differs_.end() && !Any(found->second);
}

ReplicaInvariance::Differs ReplicaInvariance::Computation(const xla::HloComputation& computation,
                                                          const std::vector<Differs>& parameters, bool around) {
  for (const xla::HloInstruction* const operation : computation.MakeInstructionPostOrder()) {
    differs_[operation] = Of(*operation, parameters, around);
  }
  return differs_[computation.root_instruction()];
}

ReplicaInvariance::Differs ReplicaInvariance::Of(const xla::HloInstruction& operation,
                                                 const std::vector<Differs>& parameters, bool around) {
  Differs differs(Size(operation.shape()), around);
  switch (operation.opcode()) {
    case HloOpcode::kParameter:
      Join(&differs, parameters[operation.parameter_number()]);
      return differs;
    case HloOpcode::kTuple:
      for (std::size_t i = 0; i < differs.size(); ++i) {
        differs[i] = differs[i] || Any(differs_[operation.operand(static_cast<int64_t>(i))]);
      }
      return differs;
    case HloOpcode::kGetTupleElement: {
      const bool element = differs_[operation.operand(0)][operation.tuple_index()];
      return Differs(differs.size(), around || element);
    }
    case HloOpcode::kWhile:
      return Loop(operation, around);
    case HloOpcode::kConditional:
    case HloOpcode::kCall:
      return Called(operation, around);
    default:
      break;
  }
  bool any = around || operation.opcode() == HloOpcode::kRng || operation.opcode() == HloOpcode::kRngBitGenerator;
  for (const xla::HloInstruction* const operand : operation.operands()) any = any || Any(differs_[operand]);
  if (!around && IsOfAll(operation)) {
    differs.assign(differs.size(), false);
    differs[0] = true;  // The state differs.
    return differs;
  }
  return Differs(differs.size(), any);
}

// Iterates until the set of elements that differ no longer grows.
ReplicaInvariance::Differs ReplicaInvariance::Loop(const xla::HloInstruction& loop, bool around) {
  Differs state = differs_[loop.operand(0)];
  for (;;) {
    const bool condition_differs = around || Any(Computation(*loop.while_condition(), {state}, around));
    Differs next = state;
    Join(&next, Computation(*loop.while_body(), {state}, condition_differs));
    if (condition_differs) next.assign(next.size(), true);
    if (next == state) return state;
    state = std::move(next);
  }
}

ReplicaInvariance::Differs ReplicaInvariance::Called(const xla::HloInstruction& call, bool around) {
  Differs differs(Size(call.shape()), around);
  const bool branches = call.opcode() == HloOpcode::kConditional;
  const bool inside = around || (branches && Any(differs_[call.operand(0)]));
  std::vector<Differs> operands;
  for (const xla::HloInstruction* const operand : call.operands()) operands.push_back(differs_[operand]);
  std::size_t branch = 0;
  for (const xla::HloComputation* const called : call.called_computations()) {
    Join(&differs, Computation(*called, branches ? std::vector<Differs>{operands[++branch]} : operands, inside));
  }
  return differs;
}

}  // namespace tensorflow_ipu::precision
