// Adds instructions to a computation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "xla/comparison_util.h"
#include "xla/hlo/ir/hlo_computation.h"
#include "xla/hlo/ir/hlo_instruction.h"
#include "xla/literal_util.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu::precision {

using Value = xla::HloInstruction*;

// Returns the name of the TensorFlow operation, or XLA's name if XLA made the instruction, as in loops of `Svd`.
inline std::string NameOf(const xla::HloInstruction& instruction) {
  const std::string& name = instruction.metadata().op_name();
  return name.empty() ? std::string(instruction.name()) : name;
}

class Emit {
 public:
  // New instructions get the metadata of `origin`, if there is one.
  explicit Emit(xla::HloComputation* computation, const xla::HloInstruction* origin = nullptr)
      : computation_(computation), origin_(origin) {}

  Value Add(std::unique_ptr<xla::HloInstruction> instruction) const {
    if (origin_ != nullptr) instruction->set_metadata(origin_->metadata());
    return computation_->AddInstruction(std::move(instruction));
  }

  template <typename T>
  Value Scalar(T value) const {
    return Add(xla::HloInstruction::CreateConstant(xla::LiteralUtil::CreateR0<T>(value)));
  }

  Value Broadcast(Value scalar, Value like) const {
    if (like->shape().dimensions().empty()) return scalar;
    return Add(xla::HloInstruction::CreateBroadcast(Typed(like, scalar->shape().element_type()), scalar, {}));
  }

  template <typename T>
  Value Filled(T value, Value like) const {
    return Broadcast(Scalar(value), like);
  }

  Value Unary(xla::HloOpcode opcode, Value a) const {
    return Add(xla::HloInstruction::CreateUnary(a->shape(), opcode, a));
  }
  Value Binary(xla::HloOpcode opcode, Value a, Value b) const {
    return Add(xla::HloInstruction::CreateBinary(a->shape(), opcode, a, b));
  }
  Value Plus(Value a, Value b) const { return Binary(xla::HloOpcode::kAdd, a, b); }
  Value Times(Value a, Value b) const { return Binary(xla::HloOpcode::kMultiply, a, b); }
  Value And(Value a, Value b) const { return Binary(xla::HloOpcode::kAnd, a, b); }
  Value Or(Value a, Value b) const { return Binary(xla::HloOpcode::kOr, a, b); }
  // XLA has no builder of `xor` here; LLVM generates one from this expression.
  Value Xor(Value a, Value b) const { return Binary(xla::HloOpcode::kSubtract, Or(a, b), And(a, b)); }
  Value Abs(Value a) const { return Unary(xla::HloOpcode::kAbs, a); }

  Value Down(Value a, uint32_t places) const {
    return Binary(xla::HloOpcode::kShiftRightLogical, a, Filled<uint32_t>(places, a));
  }

  Value Compare(Value a, Value b, xla::ComparisonDirection direction) const {
    return Add(xla::HloInstruction::CreateCompare(Typed(a, xla::PRED), a, b, direction));
  }

  Value Select(Value condition, Value on_true, Value on_false) const {
    return Add(
        xla::HloInstruction::CreateTernary(on_true->shape(), xla::HloOpcode::kSelect, condition, on_true, on_false));
  }

  Value Convert(Value a, xla::PrimitiveType type) const {
    if (a->shape().element_type() == type) return a;
    return Add(xla::HloInstruction::CreateConvert(Typed(a, type), a));
  }
  Value Bits(Value a, xla::PrimitiveType type) const {
    return Add(xla::HloInstruction::CreateBitcastConvert(Typed(a, type), a));
  }

  Value Call(const char* target, const std::vector<Value>& operands, const xla::Shape& shape,
             const std::string& attributes) const {
    return Add(xla::HloInstruction::CreateCustomCall(shape, operands, target, attributes,
                                                     xla::CustomCallApiVersion::API_VERSION_TYPED_FFI));
  }

  Value Tuple(const std::vector<Value>& elements) const { return Add(xla::HloInstruction::CreateTuple(elements)); }
  Value Element(Value tuple, int64_t index) const {
    return Add(xla::HloInstruction::CreateGetTupleElement(tuple->shape().tuple_shapes(index), tuple, index));
  }

  static xla::Shape Typed(Value like, xla::PrimitiveType type) {
    return xla::ShapeUtil::ChangeElementType(like->shape(), type);
  }

  xla::HloComputation* computation() const { return computation_; }

 private:
  xla::HloComputation* const computation_;
  const xla::HloInstruction* const origin_;
};

}  // namespace tensorflow_ipu::precision
