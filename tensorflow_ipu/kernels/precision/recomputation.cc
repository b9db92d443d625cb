#include "tensorflow_ipu/kernels/precision/recomputation.h"

#include <unordered_set>

#include "xla/hlo/ir/hlo_module.h"

namespace tensorflow_ipu::precision {

namespace {

using xla::HloOpcode;

// Larger constants are passed and not duplicated.
constexpr int64_t kSmallConstant = 64;

// Whether a value is recomputed from its operands, and not passed. Slices of buffers are passed: a buffer that is
// updated in place later would have to be copied.
bool IsRecomputed(const xla::HloInstruction& value) {
  if (!value.shape().IsArray() || value.shape().is_dynamic()) return false;
  switch (value.opcode()) {
    case HloOpcode::kConstant:
      return xla::ShapeUtil::ElementsIn(value.shape()) <= kSmallConstant;
    case HloOpcode::kBroadcast:
    case HloOpcode::kConcatenate:
    case HloOpcode::kIota:
    case HloOpcode::kPad:
    case HloOpcode::kReshape:
    case HloOpcode::kReverse:
    case HloOpcode::kTranspose:
      return true;
    case HloOpcode::kSlice:
      return value.operand(0)->opcode() != HloOpcode::kParameter &&
             value.operand(0)->opcode() != HloOpcode::kGetTupleElement;
    default:
      return value.IsElementwise() && value.called_computations().empty() && !value.HasSideEffect();
  }
}

}  // namespace

Recomputation::Recomputation(xla::HloComputation* from, const std::vector<Value>& wanted) : from_(from) {
  std::unordered_set<const xla::HloInstruction*> needed(wanted.begin(), wanted.end());
  std::vector<Value> waiting = wanted;
  while (!waiting.empty()) {
    const Value value = waiting.back();
    waiting.pop_back();
    if (!IsRecomputed(*value)) continue;
    for (const Value operand : value->operands()) {
      if (needed.insert(operand).second) waiting.push_back(operand);
    }
  }
  const std::vector<Value> in_order = from->MakeInstructionPostOrder();
  std::vector<xla::Shape> shapes;
  for (const Value value : in_order) {
    if (needed.count(value) == 0 || IsRecomputed(*value)) continue;
    taken_.push_back(value);
    shapes.push_back(value->shape());
  }
  xla::HloComputation::Builder builder("stopped");
  const Value all =
      builder.AddInstruction(xla::HloInstruction::CreateParameter(0, xla::ShapeUtil::MakeTupleShape(shapes), "values"));
  computation_ = from->parent()->AddEmbeddedComputation(builder.Build());
  const Emit emit(computation_);
  for (std::size_t i = 0; i < taken_.size(); ++i) made_[taken_[i]] = emit.Element(all, static_cast<int64_t>(i));
  for (const Value value : in_order) {
    if (needed.count(value) == 0 || made_.count(value) != 0) continue;
    std::vector<Value> operands;
    for (const xla::HloInstruction* const operand : value->operands()) operands.push_back(made_.at(operand));
    made_[value] = emit.Add(value->CloneWithNewOperands(value->shape(), operands));
  }
}

}  // namespace tensorflow_ipu::precision
