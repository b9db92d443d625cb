#include "tensorflow_ipu/kernels/precision/rounding.h"

#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tensorflow_ipu/kernels/host/releases.h"
#include "xla/hlo/ir/hlo_casting_utils.h"
#include "xla/hlo/ir/hlo_instructions.h"
#include "xla/hlo/ir/hlo_module.h"

namespace tensorflow_ipu::precision {

using xla::ComparisonDirection;
using xla::HloOpcode;

Options Options::Of(std::string_view text) {
  Options options;
  for (const std::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const std::pair<std::string_view, std::string_view> pair = absl::StrSplit(word, absl::MaxSplits('=', 1));
    const auto [name, value] = pair;
    if (const std::size_t colon = name.find(':'); colon != std::string_view::npos) {
      options.attributes[std::string(name.substr(0, colon))].emplace(name.substr(colon + 1), value);
      continue;
    }
    if (name == "inv") options.inv = value == "1";
    if (name == "div0") options.div0 = value == "1";
    if (name == "oflo") options.oflo = value == "1";
    if (name == "nanoo") options.nanoo = value == "1";
    if (name == "stable") options.stable = value == "1";
    if (name == "esr" && value == "on") options.rounding = Rounding::kStochastic;
    if (name == "esr" && value == "identical") options.rounding = Rounding::kIdenticalOnly;
    if (name == "partials_matmul") options.matmul_partials = value;
    if (name == "partials_conv") options.conv_partials = value;
  }
  return options;
}

namespace {

constexpr float kLargest = 65504.0f;   // The largest float16 value.
constexpr float kRoundsUp = 65520.0f;  // From this value on, the nearest float16 value is beyond the largest one.

// The finalizer of SplitMix64; see `numerics/random_streams.cc`.
uint64_t Scattered(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

Value Mixed(const Emit& emit, Value x) {
  x = emit.Times(emit.Xor(x, emit.Down(x, 16)), emit.Filled(core::kFirstFactor, x));
  x = emit.Times(emit.Xor(x, emit.Down(x, 15)), emit.Filled(core::kSecondFactor, x));
  return emit.Xor(x, emit.Down(x, 16));
}

bool IsMarked(const xla::HloInstruction& operation, std::string_view as) {
  const auto& attributes = operation.frontend_attributes().map();
  const auto found = attributes.find("ipu_f8");
  return found != attributes.end() && found->second == as;
}

// Returns true for elementwise operations that compute; others move, compare or select.
bool ComputesElements(const xla::HloInstruction& operation) {
  return xla::HloPredicateIsOp<IPU_INVERSE_AND_HYPERBOLIC, HloOpcode::kAdd, HloOpcode::kAtan2, HloOpcode::kCbrt,
                               HloOpcode::kCos, HloOpcode::kDivide, HloOpcode::kErf, HloOpcode::kExp, HloOpcode::kExpm1,
                               HloOpcode::kLog, HloOpcode::kLog1p, HloOpcode::kLogistic, HloOpcode::kMultiply,
                               HloOpcode::kPower, HloOpcode::kRemainder, HloOpcode::kRsqrt, HloOpcode::kSin,
                               HloOpcode::kSqrt, HloOpcode::kSubtract, HloOpcode::kTanh>(&operation);
}

xla::Shape WideShape(const xla::Shape& shape) {
  return IsHalf(shape) ? xla::ShapeUtil::ChangeElementType(shape, xla::F32) : shape;
}

// Returns true if the combiner of an operation computes, like a sum and unlike a maximum. The combiner is the last
// computation that the operation calls. Returns false if any called computation cannot be widened.
bool Combines(const xla::HloInstruction& operation) {
  bool computes = false;
  for (const xla::HloComputation* const called : operation.called_computations()) {
    computes = false;
    for (const xla::HloInstruction* const instruction : called->instructions()) {
      if (instruction->shape().IsTuple() || !instruction->called_computations().empty()) return false;
      computes = computes || ComputesElements(*instruction);
    }
  }
  return computes;
}

// Returns the combiner, whose values are scalars, in float32.
xla::HloComputation* WideCombiner(xla::HloComputation* combiner) {
  xla::HloComputation::Builder builder(std::string(combiner->name()) + ".wide");
  std::unordered_map<const xla::HloInstruction*, Value> wide;
  for (const xla::HloInstruction* const instruction : combiner->MakeInstructionPostOrder()) {
    const xla::Shape shape = WideShape(instruction->shape());
    if (instruction->opcode() == HloOpcode::kParameter) {
      wide[instruction] = builder.AddInstruction(xla::HloInstruction::CreateParameter(
          instruction->parameter_number(), shape, std::string(instruction->name())));
    } else if (instruction->opcode() == HloOpcode::kConstant && IsHalf(instruction->shape())) {
      const Value narrow = builder.AddInstruction(instruction->Clone());
      wide[instruction] = builder.AddInstruction(xla::HloInstruction::CreateConvert(shape, narrow));
    } else {
      std::vector<Value> operands;
      for (const xla::HloInstruction* const operand : instruction->operands()) operands.push_back(wide.at(operand));
      wide[instruction] = builder.AddInstruction(instruction->CloneWithNewOperands(shape, operands));
    }
  }
  return combiner->parent()->AddEmbeddedComputation(builder.Build(wide.at(combiner->root_instruction())));
}

}  // namespace

bool IsHalf(const xla::Shape& shape) { return shape.IsArray() && shape.element_type() == xla::F16; }

Key KeyOf(const Emit& emit, Key key, uint64_t part) {
  const uint64_t scattered = Scattered(part);
  const auto high = static_cast<uint32_t>(scattered >> 32);
  const auto low = static_cast<uint32_t>(scattered);
  return {Mixed(emit, emit.Plus(key.first, emit.Scalar(high))), Mixed(emit, emit.Xor(key.second, emit.Scalar(low)))};
}

Key NextKey(const Emit& emit, Key key) {
  return {emit.Plus(key.first, emit.Scalar(core::kGolden)),
          Mixed(emit, emit.Plus(key.second, emit.Scalar(core::kGolden)))};
}

// Lets the result of a call use the memory of its first operand, unless the operand has other users.
static Value InPlace(Value call) {
  xla::Cast<xla::HloCustomCallInstruction>(call)->set_output_to_operand_aliasing({{{}, {0, {}}}});
  return call;
}

core::Operation RoundedInside(const xla::HloInstruction& operation) {
  if (!IsHalf(operation.shape())) return core::Operation::kNone;
  for (const xla::HloInstruction* const operand : operation.operands()) {
    // XLA would have to write such operands to memory.
    if (operand->opcode() == HloOpcode::kBroadcast && !xla::ShapeUtil::IsScalar(operand->operand(0)->shape())) {
      return core::Operation::kNone;
    }
  }
  static constexpr std::pair<HloOpcode, core::Operation> kOperations[] = {
      {HloOpcode::kAdd, core::Operation::kAdd},
      {HloOpcode::kSubtract, core::Operation::kSubtract},
      {HloOpcode::kMultiply, core::Operation::kMultiply},
      {HloOpcode::kDivide, core::Operation::kDivide},
      {HloOpcode::kSqrt, core::Operation::kSqrt}};
  for (const auto& [opcode, inside] : kOperations) {
    if (operation.opcode() == opcode) return inside;
  }
  return core::Operation::kNone;
}

std::vector<Value> InsideOperands(const xla::HloInstruction& operation, const WideValues& wide_values) {
  std::vector<Value> operands;
  for (Value operand : operation.operands()) {
    if (operand->opcode() == HloOpcode::kBroadcast) operand = operand->mutable_operand(0);
    const auto found = wide_values.find(operand);
    operands.push_back(found == wide_values.end() ? operand : found->second);
  }
  return operands;
}

Value RoundStochastically(const Emit& emit, core::Operation operation, const std::vector<Value>& operands,
                          const xla::Shape& shape, Key key, uint64_t site, core::RoundTo to) {
  std::vector<Value> all = operands;
  all.insert(all.end(), {key.first, key.second});
  const Value call =
      emit.Call(kRound, all, shape,
                absl::StrCat("{site = ", static_cast<int64_t>(Scattered(site)), " : i64, to = ", static_cast<int>(to),
                             " : i64, operation = ", static_cast<int>(operation), " : i64}"));
  return operation == core::Operation::kNone && shape == operands[0]->shape() ? InPlace(call) : call;
}

Value Bounded(const Emit& emit, Value value, bool nan_on_overflow) {
  if (nan_on_overflow) {
    const Value above = emit.Compare(emit.Abs(value), emit.Filled(kRoundsUp, value), ComparisonDirection::kGe);
    return emit.Select(above, emit.Filled(std::numeric_limits<float>::quiet_NaN(), value), value);
  }
  const Value bounded = emit.Add(xla::HloInstruction::CreateTernary(
      value->shape(), HloOpcode::kClamp, emit.Filled(-kLargest, value), value, emit.Filled(kLargest, value)));
  // On the CPU, XLA's clamp may replace a NaN by a bound.
  return emit.Select(emit.Compare(value, value, ComparisonDirection::kEq), bounded, value);
}

Value Shared(const Emit& emit, Value value) { return InPlace(emit.Call(kShared, {value}, value->shape(), "")); }

bool RoundsToF8(const xla::HloInstruction& operation) {
  return operation.opcode() == HloOpcode::kRoundNearestEven && IsMarked(operation, "rounds");
}

bool OverflowsF8(const xla::HloInstruction& operation) {
  return operation.opcode() == HloOpcode::kNegate && IsMarked(operation, "overflows");
}

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
    case HloOpcode::kCustomCall:  // Layers of float16 are computed and checked in float32.
      return operation.IsCustomCall("ipu_host_kernel") && operation.shape().element_type() == xla::F32;
    case HloOpcode::kReduce:
    case HloOpcode::kReduceWindow:
    case HloOpcode::kScatter:
    case HloOpcode::kSelectAndScatter:
      return Combines(operation);
    default:
      return ComputesElements(operation);
  }
}

Value Widened(const Emit& emit, const xla::HloInstruction& operation, const WideValues& wide_values) {
  if (operation.opcode() == HloOpcode::kConvert) {
    return emit.Convert(operation.operands()[0], xla::F32);
  }
  std::vector<Value> operands;
  for (xla::HloInstruction* const operand : operation.operands()) {
    const auto found = wide_values.find(operand);
    if (found != wide_values.end()) {
      operands.push_back(found->second);
    } else {
      operands.push_back(IsHalf(operand->shape()) ? emit.Convert(operand, xla::F32) : operand);
    }
  }
  const Value wide =
      emit.computation()->AddInstruction(operation.CloneWithNewOperands(WideShape(operation.shape()), operands));
  if (operation.opcode() != HloOpcode::kDot && operation.opcode() != HloOpcode::kConvolution) {
    wide->ReplaceCalledComputations([](xla::HloComputation* combiner) { return WideCombiner(combiner); });
  }
  return wide;
}

Scope Scope::Inside(const Emit& emit, uint64_t part) const {
  Scope inside = *this;
  inside.key = KeyOf(emit, key, part);
  inside.shared = KeyOf(emit, shared, part);
  return inside;
}

Value Scope::Packed(const Emit& emit) const {
  std::vector<Value> elements = {key.first, key.second, shared.first, shared.second, state, failed};
  elements.insert(elements.end(), iterations.begin(), iterations.end());
  return emit.Tuple(elements);
}

Scope Scope::Of(const Emit& emit, Value packed, const Scope& like) {
  Scope scope;
  scope.key = {emit.Element(packed, 0), emit.Element(packed, 1)};
  scope.shared = {emit.Element(packed, 2), emit.Element(packed, 3)};
  scope.state = emit.Element(packed, 4);
  scope.failed = emit.Element(packed, kFailed);
  for (std::size_t i = 0; i < like.iterations.size(); ++i) {
    scope.iterations.push_back(emit.Element(packed, kFailed + 1 + static_cast<int64_t>(i)));
  }
  scope.loops = like.loops;
  return scope;
}

Value Enter(xla::HloComputation* computation, const xla::Shape& packed) {
  const Emit emit(computation);
  const Value parameter = computation->parameter_instruction(0);
  const std::vector<Value> users(parameter->users().begin(), parameter->users().end());
  const xla::Shape plain = parameter->shape();
  *parameter->mutable_shape() = xla::ShapeUtil::MakeTupleShape({plain, packed});
  const Value inside = emit.Element(parameter, 0);
  for (const Value user : users) {
    for (int64_t i = 0; i < user->operand_count(); ++i) {
      if (user->operand(i) == parameter) CHECK_OK(user->ReplaceOperandWithDifferentShape(i, inside));
    }
  }
  if (computation->root_instruction() == parameter) computation->set_root_instruction(inside, true);
  return emit.Element(parameter, 1);
}

void Leave(const Emit& emit, Value packed) {
  const Value root = emit.computation()->root_instruction();
  emit.computation()->set_root_instruction(emit.Tuple({root, packed}), /*accept_different_shape=*/true);
}

}  // namespace tensorflow_ipu::precision
