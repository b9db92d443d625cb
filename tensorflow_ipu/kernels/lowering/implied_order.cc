#include "tensorflow_ipu/kernels/lowering/implied_order.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "xla/hlo/ir/hlo_opcode.h"
#include "xla/service/hlo.pb.h"
#include "xla/shape.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {
namespace {

using Instruction = xla::HloInstructionProto;
using Computation = xla::HloComputationProto;

// The frontend attribute of ordered instructions.
constexpr char kInOrder[] = "ipu_in_order";

// The tensor that a call is given in the place of the order lives until then. One that is larger might keep its memory
// from others.
constexpr int64_t kMostBytes = 4096;

bool IsDequeue(const Instruction& call) { return call.custom_call_target() == "ipu_infeed_dequeue"; }

bool IsQueueCall(const Instruction& call) {
  return IsDequeue(call) || call.custom_call_target() == "ipu_outfeed_enqueue";
}

bool IsOrdered(const Instruction& instruction) { return instruction.frontend_attributes().map().contains(kInOrder); }

// The number of an instruction among those of its computation, by which others name it as an operand. Some numbers have
// that of the computation in their upper half.
int64_t InComputation(int64_t number) { return number & std::numeric_limits<uint32_t>::max(); }

int64_t NumberOf(const Instruction& instruction) { return InComputation(instruction.id()); }

int64_t FirstOperandOf(const Instruction& instruction) { return InComputation(instruction.operand_ids(0)); }

bool IsResultOf(const Instruction& call, const Instruction& instruction) {
  return instruction.opcode() == xla::HloOpcodeString(xla::HloOpcode::kGetTupleElement) &&
         FirstOperandOf(instruction) == NumberOf(call);
}

// The computation that has all instructions in order, where these are calls of queues; null where there is none.
Computation* ComputationOfQueues(xla::HloModuleProto* program) {
  Computation* found = nullptr;
  for (Computation& computation : *program->mutable_computations()) {
    for (const Instruction& instruction : computation.instructions()) {
      if (!IsOrdered(instruction)) continue;
      if (!IsQueueCall(instruction) || (found != nullptr && found != &computation)) return nullptr;
      found = &computation;
    }
  }
  return found;
}

// Whether one instruction alone calls the computation, and so on, up to the whole program.
bool IsCalledOnce(const xla::HloModuleProto& program, int64_t computation) {
  std::map<int64_t, std::vector<int64_t>> callers;
  for (const Computation& each : program.computations()) {
    for (const Instruction& instruction : each.instructions()) {
      for (const int64_t called : instruction.called_computation_ids()) callers[called].push_back(each.id());
    }
  }
  while (computation != program.entry_computation_id()) {
    if (callers[computation].size() != 1) return false;
    computation = callers[computation].front();
  }
  return true;
}

// The place of the smallest tensor in what a dequeue returns, of which the first is its order.
int SmallestTensor(const Instruction& dequeue) {
  const auto& shapes = dequeue.shape().tuple_shapes();
  const auto bytes = [](const xla::ShapeProto& shape) {
    return xla::ShapeUtil::ByteSizeOf(xla::Shape::FromProto(shape).value());
  };
  const auto smallest = std::min_element(shapes.begin() + 1, shapes.end(),
                                         [&](const auto& one, const auto& other) { return bytes(one) < bytes(other); });
  return bytes(*smallest) > kMostBytes ? 0 : static_cast<int>(smallest - shapes.begin());
}

// The ordered calls of a computation, which are calls of queues.
class Chain {
 public:
  explicit Chain(Computation* computation) : computation_(computation) {
    for (Instruction& instruction : *computation_->mutable_instructions()) {
      if (IsOrdered(instruction)) calls_.push_back(&instruction);
    }
  }

  // Takes the order from all calls, and gives each an element of the one before. Returns false, and changes nothing,
  // where that cannot be.
  bool Untie() {
    std::vector<const Instruction*> before = {nullptr};  // What each call is given.
    for (std::size_t i = 0; i + 1 < calls_.size(); ++i) {
      const int place = IsDequeue(*calls_[i]) ? SmallestTensor(*calls_[i]) : 0;
      before.push_back(place == 0 ? nullptr : ResultOf(*calls_[i], place));
      const Instruction* const order = ResultOf(*calls_[i], 0);
      if (before.back() == nullptr || order == nullptr || FirstOperandOf(*calls_[i + 1]) != NumberOf(*order))
        return false;
    }
    if (calls_.size() == 1 && !IsDequeue(*calls_[0])) return false;
    for (std::size_t i = 0; i < calls_.size(); ++i) Rewrite(before[i], calls_[i]);
    Bury();
    return true;
  }

 private:
  const Instruction* ResultOf(const Instruction& call, int64_t place) const {
    for (const Instruction& instruction : computation_->instructions()) {
      if (IsResultOf(call, instruction) && instruction.tuple_index() == place) return &instruction;
    }
    return nullptr;
  }

  void Rewrite(const Instruction* before, Instruction* call) {
    TakeFromResults(*call);
    call->set_custom_call_target(call->custom_call_target() + "_unordered");
    call->mutable_frontend_attributes()->mutable_map()->erase(kInOrder);
    call->clear_output_operand_aliasing();
    call->mutable_shape()->mutable_tuple_shapes()->DeleteSubrange(0, 1);
    call->mutable_operand_ids()->erase(call->operand_ids().begin());
    call->mutable_operand_shapes_with_layout()->DeleteSubrange(0, 1);
    if (before == nullptr) return;
    call->add_operand_ids(NumberOf(*before));
    *call->add_operand_shapes_with_layout() = before->shape();
  }

  // Has those who use the order that the call returns use the one that it is given, and its other results count anew.
  void TakeFromResults(const Instruction& call) {
    for (Instruction& instruction : *computation_->mutable_instructions()) {
      if (!IsResultOf(call, instruction)) continue;
      if (instruction.tuple_index() == 0) {
        replaced_[NumberOf(instruction)] = FirstOperandOf(call);
      } else {
        instruction.set_tuple_index(instruction.tuple_index() - 1);
      }
    }
  }

  // Ends the instructions that have been replaced.
  void Bury() {
    auto* const instructions = computation_->mutable_instructions();
    for (Instruction& instruction : *instructions) {
      for (int64_t& operand : *instruction.mutable_operand_ids()) operand = Living(InComputation(operand));
    }
    const int64_t root = computation_->root_id();
    computation_->set_root_id(root - InComputation(root) + Living(InComputation(root)));
    const auto dead =
        std::remove_if(instructions->begin(), instructions->end(),
                       [this](const Instruction& instruction) { return replaced_.count(NumberOf(instruction)) > 0; });
    instructions->erase(dead, instructions->end());
  }

  // The instruction in the place of this one, in the end.
  int64_t Living(int64_t instruction) const {
    for (auto found = replaced_.find(instruction); found != replaced_.end(); found = replaced_.find(instruction)) {
      instruction = found->second;
    }
    return instruction;
  }

  Computation* const computation_;
  std::vector<Instruction*> calls_;
  std::map<int64_t, int64_t> replaced_;  // Instructions that are to end: what takes their place.
};

}  // namespace

void MarkAsOrdered(xla::XlaOp instruction) {
  // Fails where the builder has failed before, and says so in the end.
  instruction.builder()->SetInstructionFrontendAttribute(instruction, kInOrder, "true").IgnoreError();
}

std::shared_ptr<xla::XlaComputation> WithoutImpliedOrder(const xla::XlaComputation& program) {
  const auto ordered = [](const Computation& computation) {
    return std::any_of(computation.instructions().begin(), computation.instructions().end(), IsOrdered);
  };
  if (!std::any_of(program.proto().computations().begin(), program.proto().computations().end(), ordered)) {
    return nullptr;  // Without a copy.
  }
  xla::HloModuleProto without = program.proto();
  Computation* const computation = ComputationOfQueues(&without);
  if (computation == nullptr || !IsCalledOnce(without, computation->id())) return nullptr;
  return Chain(computation).Untie() ? std::make_shared<xla::XlaComputation>(std::move(without)) : nullptr;
}

}  // namespace tensorflow_ipu
