#include "tensorflow_ipu/kernels/precision/rounding.h"

#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/str_split.h"
#include "tensorflow_ipu/kernels/host/releases.h"
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

// The significand bits that float16 drops from float32.
constexpr uint32_t kDropped = 13;
constexpr uint32_t kDroppedMask = (1u << kDropped) - 1;

constexpr float kLargest = 65504.0f;         // Of float16.
constexpr float kRoundsUp = 65520.0f;        // From here on the nearest is above it.
constexpr float kSmallestNormal = 0x1p-14f;  // Of float16.
constexpr float kQuantum = 0x1p-24f;         // Between numbers below that.

constexpr uint32_t kGolden = 0x9e3779b9;

// Constants of a 32-bit finalizer with low bias: Wellons, Prospecting for Hash Functions, 2018.
constexpr uint32_t kFirstFactor = 0x7feb352d;
constexpr uint32_t kSecondFactor = 0x846ca68b;

// The finalizer of SplitMix64; see `core/random_streams.cc`.
uint64_t Scattered(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

Value Mixed(const Emit& emit, Value x) {
  x = emit.Times(emit.Xor(x, emit.Down(x, 16)), emit.Filled(kFirstFactor, x));
  x = emit.Times(emit.Xor(x, emit.Down(x, 15)), emit.Filled(kSecondFactor, x));
  return emit.Xor(x, emit.Down(x, 16));
}

// The index of each element in row-major order.
Value Places(const Emit& emit, Value like) {
  if (like->shape().dimensions().empty()) return emit.Scalar<uint32_t>(0);
  const xla::Shape row = xla::ShapeUtil::MakeShape(xla::U32, {xla::ShapeUtil::ElementsIn(like->shape())});
  const Value numbers = emit.Add(xla::HloInstruction::CreateIota(row, 0));
  if (like->shape().dimensions().size() == 1) return numbers;
  return emit.Add(xla::HloInstruction::CreateReshape(Emit::Typed(like, xla::U32), numbers));
}

Value RandomBits(const Emit& emit, Value like, Key key, uint64_t site) {
  const Key own = KeyOf(emit, key, site);
  Value x = emit.Times(Places(emit, like), emit.Filled(kGolden, like));
  x = emit.Plus(x, emit.Broadcast(own.first, like));
  x = emit.Times(emit.Xor(x, emit.Down(x, 16)), emit.Filled(kFirstFactor, x));
  x = emit.Plus(x, emit.Broadcast(own.second, like));
  x = emit.Times(emit.Xor(x, emit.Down(x, 15)), emit.Filled(kSecondFactor, x));
  return emit.Down(x, 32 - kDropped);
}

// A number in [0, 1) for 13 random bits.
Value FractionOf(const Emit& emit, Value random) {
  return emit.Times(emit.Convert(emit.Bits(random, xla::S32), xla::F32), emit.Filled(1.0f / (1 << kDropped), random));
}

bool IsMarked(const xla::HloInstruction& operation, std::string_view as) {
  const auto& attributes = operation.frontend_attributes().map();
  const auto found = attributes.find("ipu_f8");
  return found != attributes.end() && found->second == as;
}

// Elementwise operations that compute; others move, compare or select.
bool ComputesElements(const xla::HloInstruction& operation) {
  return xla::HloPredicateIsOp<IPU_INVERSE_AND_HYPERBOLIC, HloOpcode::kAdd, HloOpcode::kAtan2, HloOpcode::kCbrt,
                               HloOpcode::kCos, HloOpcode::kDivide, HloOpcode::kErf, HloOpcode::kExp, HloOpcode::kExpm1,
                               HloOpcode::kLog, HloOpcode::kLog1p, HloOpcode::kLogistic, HloOpcode::kMultiply,
                               HloOpcode::kPower, HloOpcode::kRemainder, HloOpcode::kRsqrt, HloOpcode::kSin,
                               HloOpcode::kSqrt, HloOpcode::kSubtract, HloOpcode::kTanh>(&operation);
}

bool HasHalf(const xla::Shape& shape) { return shape.IsArray() && shape.element_type() == xla::F16; }

xla::Shape WideShape(const xla::Shape& shape) {
  return HasHalf(shape) ? xla::ShapeUtil::ChangeElementType(shape, xla::F32) : shape;
}

// Whether the combiner of a reduction computes; a maximum does not.
bool Combines(const xla::HloComputation& combiner) {
  for (const xla::HloInstruction* const one : combiner.instructions()) {
    if (ComputesElements(*one)) return true;
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

Key KeyOf(const Emit& emit, Key key, uint64_t part) {
  const uint64_t scattered = Scattered(part);
  const auto high = static_cast<uint32_t>(scattered >> 32);
  const auto low = static_cast<uint32_t>(scattered);
  return {Mixed(emit, emit.Plus(key.first, emit.Scalar(high))), Mixed(emit, emit.Xor(key.second, emit.Scalar(low)))};
}

Key NextKey(const Emit& emit, Key key) {
  return {emit.Plus(key.first, emit.Scalar(kGolden)), Mixed(emit, emit.Plus(key.second, emit.Scalar(kGolden)))};
}

Value RoundStochastically(const Emit& emit, Value value, Key key, uint64_t site) {
  const Value random = RandomBits(emit, value, key, site);
  // Adding random bits below the significand of float16 carries into it in proportion to the dropped bits; the rest is
  // cut off.
  const Value bits = emit.Plus(emit.Bits(value, xla::U32), random);
  const Value normal = emit.Bits(emit.And(bits, emit.Filled(~kDroppedMask, bits)), xla::F32);
  // Subnormal numbers are evenly spaced: there a random fraction is added and the sum is cut off.
  const Value absolute = emit.Abs(value);
  const Value fraction = FractionOf(emit, random);
  const Value quanta =
      emit.Unary(HloOpcode::kFloor, emit.Plus(emit.Times(absolute, emit.Filled(1 / kQuantum, value)), fraction));
  const Value sign = emit.And(emit.Bits(value, xla::U32), emit.Filled(0x80000000u, value));
  const Value small =
      emit.Bits(emit.Or(emit.Bits(emit.Times(quanta, emit.Filled(kQuantum, value)), xla::U32), sign), xla::F32);
  const Value is_small = emit.Compare(absolute, emit.Filled(kSmallestNormal, value), ComparisonDirection::kLt);
  // Adding bits may have changed a NaN.
  const Value is_number = emit.Compare(value, value, ComparisonDirection::kEq);
  return emit.Select(is_number, emit.Select(is_small, small, normal), value);
}

Value Bounded(const Emit& emit, Value value, bool nan_on_overflow, bool rounded) {
  const Value absolute = emit.Abs(value);
  const Value above = rounded ? emit.Compare(absolute, emit.Filled(kLargest, value), ComparisonDirection::kGt)
                              : emit.Compare(absolute, emit.Filled(kRoundsUp, value), ComparisonDirection::kGe);
  if (nan_on_overflow) {
    return emit.Select(above, emit.Filled(std::numeric_limits<float>::quiet_NaN(), value), value);
  }
  const Value zero = emit.Filled(0.0f, value);
  const Value bound = emit.Select(emit.Compare(value, zero, ComparisonDirection::kLt), emit.Filled(-kLargest, value),
                                  emit.Filled(kLargest, value));
  return emit.Select(above, bound, value);
}

Value Unfused(const Emit& emit, Value product) {
  constexpr float kBeyond = std::numeric_limits<float>::infinity();
  const Value above = emit.Compare(product, emit.Filled(kRoundsUp, product), ComparisonDirection::kGe);
  const Value below = emit.Compare(product, emit.Filled(-kRoundsUp, product), ComparisonDirection::kLe);
  return emit.Select(above, emit.Filled(kBeyond, product), emit.Select(below, emit.Filled(-kBeyond, product), product));
}

bool RoundsToF8(const xla::HloInstruction& operation) {
  return operation.opcode() == HloOpcode::kRoundNearestEven && IsMarked(operation, "rounds");
}

bool OverflowsF8(const xla::HloInstruction& operation) {
  return operation.opcode() == HloOpcode::kNegate && IsMarked(operation, "overflows");
}

Value RoundedToF8(const Emit& emit, const xla::HloInstruction& operation, Key key, uint64_t site) {
  const Value magnitude = operation.operands()[0];
  return emit.Unary(HloOpcode::kFloor, emit.Plus(magnitude, FractionOf(emit, RandomBits(emit, magnitude, key, site))));
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
      return ComputesElements(operation);
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
