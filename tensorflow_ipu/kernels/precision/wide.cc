#include "tensorflow_ipu/kernels/precision/wide.h"

#include <memory>
#include <string>
#include <vector>

#include "xla/hlo/ir/hlo_module.h"

namespace tensorflow_ipu::precision {

namespace {

using xla::HloOpcode;

// Elementwise operations that compute; others move, compare or select.
bool ComputesElements(HloOpcode opcode) {
  switch (opcode) {
    case HloOpcode::kAcos:
    case HloOpcode::kAcosh:
    case HloOpcode::kAdd:
    case HloOpcode::kAsin:
    case HloOpcode::kAsinh:
    case HloOpcode::kAtan2:
    case HloOpcode::kAtanh:
    case HloOpcode::kCbrt:
    case HloOpcode::kCos:
    case HloOpcode::kCosh:
    case HloOpcode::kDivide:
    case HloOpcode::kErf:
    case HloOpcode::kExp:
    case HloOpcode::kExpm1:
    case HloOpcode::kLog:
    case HloOpcode::kLog1p:
    case HloOpcode::kLogistic:
    case HloOpcode::kMultiply:
    case HloOpcode::kPower:
    case HloOpcode::kRemainder:
    case HloOpcode::kRsqrt:
    case HloOpcode::kSin:
    case HloOpcode::kSinh:
    case HloOpcode::kSqrt:
    case HloOpcode::kSubtract:
    case HloOpcode::kTan:
    case HloOpcode::kTanh:
      return true;
    default:
      return false;
  }
}

bool HasHalf(const xla::Shape& shape) { return shape.IsArray() && shape.element_type() == xla::F16; }

xla::Shape WideShape(const xla::Shape& shape) {
  return HasHalf(shape) ? xla::ShapeUtil::ChangeElementType(shape, xla::F32) : shape;
}

// Whether the combiner of a reduction computes; a maximum does not.
bool Combines(const xla::HloComputation& combiner) {
  for (const xla::HloInstruction* const one : combiner.instructions()) {
    if (ComputesElements(one->opcode())) return true;
  }
  return false;
}

bool CanBeWide(const xla::HloComputation& combiner) {
  for (const xla::HloInstruction* const one : combiner.instructions()) {
    if (one->shape().IsTuple() || !one->called_computations().empty()) return false;
  }
  return true;
}

// The combiner, of scalars, in float32.
xla::HloComputation* WideCombiner(xla::HloComputation* combiner) {
  xla::HloComputation::Builder builder(std::string(combiner->name()) + ".wide");
  std::unordered_map<const xla::HloInstruction*, Value> made;
  for (const xla::HloInstruction* const one : combiner->MakeInstructionPostOrder()) {
    const xla::Shape shape = WideShape(one->shape());
    if (one->opcode() == HloOpcode::kParameter) {
      made[one] = builder.AddInstruction(
          xla::HloInstruction::CreateParameter(one->parameter_number(), shape, std::string(one->name())));
    } else if (one->opcode() == HloOpcode::kConstant && HasHalf(one->shape())) {
      const Value narrow = builder.AddInstruction(one->Clone());
      made[one] = builder.AddInstruction(xla::HloInstruction::CreateConvert(shape, narrow));
    } else {
      std::vector<Value> operands;
      for (const xla::HloInstruction* const operand : one->operands()) operands.push_back(made.at(operand));
      made[one] = builder.AddInstruction(one->CloneWithNewOperands(shape, operands));
    }
  }
  return combiner->parent()->AddEmbeddedComputation(builder.Build(made.at(combiner->root_instruction())));
}

}  // namespace

bool Computes(const xla::HloInstruction& operation) {
  if (!operation.shape().IsArray()) return false;
  switch (operation.opcode()) {
    case HloOpcode::kConvert: {
      const xla::PrimitiveType from = operation.operand(0)->shape().element_type();
      return operation.shape().element_type() == xla::F16 && from != xla::F16 && from != xla::PRED && from != xla::S8 &&
             from != xla::U8;
    }
    case HloOpcode::kDot:
    case HloOpcode::kConvolution:
      return true;
    case HloOpcode::kReduce:
    case HloOpcode::kReduceWindow:
    case HloOpcode::kScatter:
    case HloOpcode::kSelectAndScatter: {
      const std::vector<xla::HloComputation*> called(operation.called_computations().begin(),
                                                     operation.called_computations().end());
      for (const xla::HloComputation* const one : called) {
        if (!CanBeWide(*one)) return false;
      }
      return Combines(*called.back());
    }
    default:
      return ComputesElements(operation.opcode());
  }
}

Value Widened(const Emit& emit, const xla::HloInstruction& operation, const WideValues& known) {
  if (operation.opcode() == HloOpcode::kConvert) {
    return emit.Convert(operation.operands()[0], xla::F32);
  }
  std::vector<Value> operands;
  for (xla::HloInstruction* const operand : operation.operands()) {
    const auto found = known.find(operand);
    if (found != known.end()) {
      operands.push_back(found->second);
    } else {
      operands.push_back(HasHalf(operand->shape()) ? emit.Convert(operand, xla::F32) : operand);
    }
  }
  const Value wide =
      emit.computation()->AddInstruction(operation.CloneWithNewOperands(WideShape(operation.shape()), operands));
  if (operation.opcode() != HloOpcode::kDot && operation.opcode() != HloOpcode::kConvolution) {
    wide->ReplaceCalledComputations([](xla::HloComputation* combiner) { return WideCombiner(combiner); });
  }
  return wide;
}

}  // namespace tensorflow_ipu::precision
