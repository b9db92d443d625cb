#include "tensorflow_ipu/kernels/precision/exposed.h"

#include <algorithm>

#include "tensorflow_ipu/kernels/precision/quarter.h"
#include "tensorflow_ipu/kernels/precision/wide.h"

namespace tensorflow_ipu::precision {

namespace {

using xla::HloOpcode;

constexpr Faults kBoth = kNan | kInfinity;

// Whether the result is a finite number of float16 for any numbers as operands.
bool IsBounded(HloOpcode opcode) {
  return opcode == HloOpcode::kTanh || opcode == HloOpcode::kLogistic || opcode == HloOpcode::kErf ||
         opcode == HloOpcode::kAtan2;
}

// Whether a reduction propagates NaNs and infinities, as sums and products do.
bool AddsUp(const xla::HloInstruction& reduction) {
  const HloOpcode combines = reduction.to_apply()->root_instruction()->opcode();
  return (combines == HloOpcode::kAdd || combines == HloOpcode::kMultiply) &&
         reduction.to_apply()->instruction_count() == 3;
}

// The faults of an operand that the result shows: an infinity there makes an infinity or a NaN here.
Faults Shown(const xla::HloInstruction& by, int64_t operand) {
  if (!IsFloat(by.shape()) || xla::ShapeUtil::IsZeroElementArray(by.shape())) return 0;
  switch (by.opcode()) {
    case HloOpcode::kAbs:
    case HloOpcode::kAcos:
    case HloOpcode::kAcosh:
    case HloOpcode::kAdd:
    case HloOpcode::kAsin:
    case HloOpcode::kAsinh:
    case HloOpcode::kAtanh:
    case HloOpcode::kBroadcast:
    case HloOpcode::kCbrt:
    case HloOpcode::kCeil:
    case HloOpcode::kConcatenate:
    case HloOpcode::kConvert:
    case HloOpcode::kCopy:
    case HloOpcode::kCos:
    case HloOpcode::kCosh:
    case HloOpcode::kDot:
    case HloOpcode::kFloor:
    case HloOpcode::kLog:
    case HloOpcode::kLog1p:
    case HloOpcode::kMultiply:
    case HloOpcode::kNegate:
    case HloOpcode::kReshape:
    case HloOpcode::kReverse:
    case HloOpcode::kRoundNearestAfz:
    case HloOpcode::kRoundNearestEven:
    case HloOpcode::kSin:
    case HloOpcode::kSinh:
    case HloOpcode::kSqrt:
    case HloOpcode::kSubtract:
    case HloOpcode::kTan:
    case HloOpcode::kTranspose:
      return kBoth;
    case HloOpcode::kDivide:
    case HloOpcode::kRemainder:
      return operand == 0 ? kBoth : kNan;  // A number divided by infinity is 0.
    case HloOpcode::kAtan2:
    case HloOpcode::kErf:
    case HloOpcode::kExp:
    case HloOpcode::kExpm1:
    case HloOpcode::kLogistic:
    case HloOpcode::kRsqrt:
    case HloOpcode::kTanh:
      return kNan;
    case HloOpcode::kReduce:
      return operand == 0 && AddsUp(by) ? kBoth : 0;
    default:
      return 0;  // Selections, powers, and what other computations make of it.
  }
}

}  // namespace

bool IsFloat(const xla::Shape& shape) {
  return shape.IsArray() && (shape.element_type() == xla::F16 || shape.element_type() == xla::F32);
}

int64_t PoleOperand(HloOpcode opcode) {
  switch (opcode) {
    case HloOpcode::kDivide:
      return 1;
    case HloOpcode::kLog:
    case HloOpcode::kPower:
    case HloOpcode::kRsqrt:
      return 0;
    default:
      return -1;
  }
}

Faults FaultsOf(const Options& options, const xla::HloInstruction& operation) {
  if (OverflowsQuarter(operation)) return options.oflo ? kInfinity : 0;
  if (!IsFloat(operation.shape()) || !Computes(operation) || IsBounded(operation.opcode()) ||
      xla::ShapeUtil::IsZeroElementArray(operation.shape())) {
    return 0;
  }
  const bool half = operation.shape().element_type() == xla::F16;
  const bool infinite = (half && options.oflo) || (options.div0 && PoleOperand(operation.opcode()) >= 0);
  return (options.inv ? kNan : 0) | (infinite ? kInfinity : 0);
}

Exposed::Exposed(const Options& options, const std::vector<Value>& operations) {
  std::unordered_map<const xla::HloInstruction*, Faults> seen;  // The faults of a value that later results show.
  for (auto one = operations.rbegin(); one != operations.rend(); ++one) {
    const xla::HloInstruction& value = **one;
    Faults& here = seen[&value];
    for (const xla::HloInstruction* const user : value.users()) {
      Faults behind = seen[user];
      if ((behind & kNan) == 0) behind = 0;  // An infinity may become a NaN there.
      for (int64_t i = 0; i < user->operand_count(); ++i) {
        if (user->operand(i) == &value) here |= behind & Shown(*user, i);
      }
    }
    // Where overflow is bounded, a number replaces the infinity.
    if (value.shape().IsArray() && value.shape().element_type() == xla::F16 && !options.oflo) here &= kNan;
    const Faults own = FaultsOf(options, value) & ~here;
    if (own == 0) continue;
    exposed_[&value] = own;
    here |= kNan | own;
  }
}

}  // namespace tensorflow_ipu::precision
