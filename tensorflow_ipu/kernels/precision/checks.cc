#include "tensorflow_ipu/kernels/precision/checks.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tensorflow_ipu/kernels/host/releases.h"
#include "tensorflow_ipu/kernels/precision/emit.h"
#include "tensorflow_ipu/kernels/precision/rounding.h"
#include "tsl/platform/snappy.h"
#include "xla/hlo/ir/hlo_casting_utils.h"
#include "xla/hlo/ir/hlo_instructions.h"
#include "xla/hlo/ir/hlo_module.h"
#include "xla/layout_util.h"
#include "xla/service/hlo_creation_utils.h"

namespace tensorflow_ipu::precision {

// Recomputes values of an HLO computation in a separate program, from values in memory.
//
// The program has a parameter for each value that is not recomputed, such as parameters of the computation and the
// results of products. XLA stores most of these in memory anyway.
class Recomputation {
 public:
  // Begins a program that can recompute the values of `wanted`.
  Recomputation(xla::HloComputation* from, const std::vector<Value>& wanted);

  // Returns the recomputed value.
  Value Of(Value value) const { return made_.at(value); }

  xla::HloComputation* computation() const { return module_.entry_computation(); }

  // The values that are passed to the program, in the original computation.
  const std::vector<Value>& taken() const { return taken_; }

  // Returns the program with these results, serialized for `LateProgram`.
  std::string Finished(const std::vector<Value>& results);

 private:
  xla::HloModule module_;
  std::vector<Value> taken_;
  std::unordered_map<const xla::HloInstruction*, Value> made_;
};

namespace {

using xla::HloOpcode;

// Larger constants are passed instead of duplicated.
constexpr int64_t kSmallConstant = 64;

// Returns true if a value is recomputed from its operands, and false if it is passed. Slices of buffers are passed: a
// buffer that is updated in place later would have to be copied.
bool IsRecomputed(const xla::HloInstruction& value) {
  if (!value.shape().IsArray() || value.shape().is_dynamic()) return false;
  if (value.opcode() == HloOpcode::kConstant) return xla::ShapeUtil::ElementsIn(value.shape()) <= kSmallConstant;
  if (value.opcode() == HloOpcode::kSlice) {
    return xla::HloPredicateIsNotOp<HloOpcode::kParameter, HloOpcode::kGetTupleElement>(value.operand(0));
  }
  return xla::HloPredicateIsOp<HloOpcode::kBroadcast, HloOpcode::kConcatenate, HloOpcode::kIota, HloOpcode::kPad,
                               HloOpcode::kReshape, HloOpcode::kReverse, HloOpcode::kTranspose>(&value) ||
         (value.IsElementwise() && value.called_computations().empty() && !value.HasSideEffect());
}

constexpr Specials kNanOrInfinity = kNan | kInfinity;

bool IsFloat(const xla::Shape& shape) {
  return shape.IsArray() && (shape.element_type() == xla::F16 || shape.element_type() == xla::F32);
}

// Returns true if the result is a finite float16 value for all operands that are not NaN.
bool IsBounded(HloOpcode opcode) {
  return opcode == HloOpcode::kTanh || opcode == HloOpcode::kLogistic || opcode == HloOpcode::kErf ||
         opcode == HloOpcode::kAtan2;
}

// Returns true if a reduction propagates NaNs and infinities, as sums and products do.
bool AddsUp(const xla::HloInstruction& reduction) {
  const HloOpcode combines = reduction.to_apply()->root_instruction()->opcode();
  return (combines == HloOpcode::kAdd || combines == HloOpcode::kMultiply) &&
         reduction.to_apply()->instruction_count() == 3;
}

// Returns true if `value` is an intermediate result of the TensorFlow operation that contains `user`, element by
// element. The names are equal, or both empty, as in loops of such an operation.
bool IsWithinOperation(const xla::HloInstruction& value, const xla::HloInstruction& user) {
  return value.metadata().op_name() == user.metadata().op_name() &&
         (user.IsElementwise() || user.IsCustomCall(kRound) || user.IsCustomCall(kShared)) &&
         xla::ShapeUtil::SameDimensions(value.shape(), user.shape());
}

bool IsSelectOf(const xla::HloInstruction& user, const xla::HloInstruction& value) {
  return user.opcode() == HloOpcode::kSelect && user.operand(0) != &value && IsWithinOperation(value, user);
}

// Returns the special values of an operand that are visible in the result: if the operand has one, the result has an
// infinity or a NaN.
Specials Shown(const xla::HloInstruction& by, int64_t operand) {
  if (!IsFloat(by.shape()) || xla::ShapeUtil::IsZeroElementArray(by.shape())) return 0;
  const HloOpcode opcode = by.opcode();
  if (xla::HloPredicateIsOp<IPU_INVERSE_AND_HYPERBOLIC, HloOpcode::kAbs, HloOpcode::kAdd, HloOpcode::kBroadcast,
                            HloOpcode::kCbrt, HloOpcode::kCeil, HloOpcode::kConcatenate, HloOpcode::kConvert,
                            HloOpcode::kCopy, HloOpcode::kCos, HloOpcode::kDot, HloOpcode::kFloor, HloOpcode::kLog,
                            HloOpcode::kLog1p, HloOpcode::kMultiply, HloOpcode::kNegate, HloOpcode::kReshape,
                            HloOpcode::kReverse, HloOpcode::kRoundNearestAfz, HloOpcode::kRoundNearestEven,
                            HloOpcode::kSin, HloOpcode::kSqrt, HloOpcode::kSubtract, HloOpcode::kTranspose>(&by))
    return kNanOrInfinity;
  if (xla::HloPredicateIsOp<HloOpcode::kAtan2, HloOpcode::kErf, HloOpcode::kExp, HloOpcode::kExpm1,
                            HloOpcode::kLogistic, HloOpcode::kRsqrt, HloOpcode::kTanh>(&by))
    return kNan;
  if (opcode == HloOpcode::kDivide || opcode == HloOpcode::kRemainder) {
    return operand == 0 ? kNanOrInfinity : kNan;  // A finite value divided by infinity is 0.
  }
  // Elements that a selection within the same TensorFlow operation drops must not stop the program.
  if (IsSelectOf(by, *by.operand(operand))) return kNanOrInfinity;
  // Other operations select, or return other values.
  return opcode == HloOpcode::kReduce && operand == 0 && AddsUp(by) ? kNanOrInfinity : 0;
}

// Returns the index of the operand that makes the result infinite if it is 0; -1 if there is none.
int64_t PoleOperand(HloOpcode opcode) {
  if (opcode == HloOpcode::kDivide) return 1;
  return opcode == HloOpcode::kLog || opcode == HloOpcode::kPower || opcode == HloOpcode::kRsqrt ? 0 : -1;
}

// Returns the special values that stop the program according to `options`, and that the operation can produce from
// operands without special values.
Specials SpecialsOf(const Options& options, const xla::HloInstruction& operation) {
  if (OverflowsF8(operation)) return options.oflo ? kInfinity : 0;
  if (!IsFloat(operation.shape()) || !Computes(operation) || IsBounded(operation.opcode()) ||
      xla::ShapeUtil::IsZeroElementArray(operation.shape())) {
    return 0;
  }
  const bool half = operation.shape().element_type() == xla::F16;
  const bool infinite = (half && options.oflo) || (options.div0 && PoleOperand(operation.opcode()) >= 0);
  return (options.inv ? kNan : 0) | (infinite ? kInfinity : 0);
}

// Returns for each operation the special values that no later result would show, so that it has to be checked.
//
// An infinity or a NaN propagates through sums and products. So it suffices to check the last results, and the operands
// of operations that can hide one. Examples are maxima, and the exp of -inf.
std::unordered_map<const xla::HloInstruction*, Specials> UnobservedSpecials(const Options& options,
                                                                            const std::vector<Value>& operations) {
  std::unordered_map<const xla::HloInstruction*, Specials> unobserved;
  // The special values of a result that are visible in later results.
  std::unordered_map<const xla::HloInstruction*, Specials> observed;
  for (auto operation = operations.rbegin(); operation != operations.rend(); ++operation) {
    const xla::HloInstruction& value = **operation;
    Specials& visible = observed[&value];
    for (const xla::HloInstruction* const user : value.users()) {
      Specials in_user = observed[user];
      if ((in_user & kNan) == 0) in_user = 0;  // An infinity may become a NaN in the user.
      for (int64_t i = 0; i < user->operand_count(); ++i) {
        if (user->operand(i) == &value) visible |= in_user & Shown(*user, i);
      }
    }
    // If overflow is bounded, a finite value replaces the infinity.
    if (value.shape().IsArray() && value.shape().element_type() == xla::F16 && !options.oflo) visible &= kNan;
    const Specials unseen = SpecialsOf(options, value) & ~visible;
    if (unseen == 0) continue;
    unobserved[&value] = unseen;
    visible |= kNan | unseen;
  }
  return unobserved;
}

constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kInfinite = 0x7f800000;      // The bits of float32 infinity.
constexpr uint32_t kAboveHalf = 0x477ff000;     // The bits of 65520, which rounds to a value beyond float16.
constexpr uint32_t kAboveLargest = 0x477fe001;  // A value above 65504, which stochastic rounding may turn into 65536.
constexpr uint32_t kInfiniteHalf = 0x7c00;      // The bits of float16 infinity.

// The number of operations that the 8 bits of a stop code distinguish.
constexpr std::size_t kCodes = 255;

// Returns true if the value is an input of the computation, or the result of an operation that is not checked.
bool IsSource(const xla::HloInstruction& operation) {
  if (!IsFloat(operation.shape())) return false;
  if (operation.opcode() == HloOpcode::kConstant) return operation.shape().dimensions().size() > 0;
  if (xla::HloPredicateIsNotOp<HloOpcode::kParameter, HloOpcode::kGetTupleElement, HloOpcode::kCustomCall>(
          &operation)) {
    return false;
  }
  // Values that are updated in place later would have to be copied to be inspected.
  return std::none_of(operation.users().begin(), operation.users().end(), [](const Value user) {
    return xla::HloPredicateIsOp<HloOpcode::kDynamicUpdateSlice, HloOpcode::kScatter, HloOpcode::kTuple,
                                 HloOpcode::kCustomCall, HloOpcode::kCall>(user);
  });
}

// Returns the values that may have caused the NaN or infinity of an operation that is not elementwise. Products and
// custom calls return their operands, which are in memory. Elementwise operations need no sources, because they are
// compared with their operands element by element.
std::vector<Value> SourcesOf(const xla::HloInstruction& operation) {
  std::vector<Value> waiting(operation.operands().begin(), operation.operands().end());
  if (xla::HloPredicateIsOp<HloOpcode::kDot, HloOpcode::kConvolution, HloOpcode::kCustomCall>(&operation)) {
    return waiting;
  }
  std::vector<Value> sources;
  std::unordered_set<const xla::HloInstruction*> visited;
  while (!waiting.empty()) {
    const Value value = waiting.back();
    waiting.pop_back();
    if (!visited.insert(value).second) continue;
    if (IsSource(*value)) {
      sources.push_back(value);
    } else {
      waiting.insert(waiting.end(), value->operands().begin(), value->operands().end());
    }
  }
  return sources;
}

}  // namespace

Recomputation::Recomputation(xla::HloComputation* from, const std::vector<Value>& wanted)
    : module_("stopped", xla::HloModuleConfig()) {
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
  xla::HloComputation::Builder builder("stopped");
  for (const Value value : in_order) {
    if (needed.count(value) == 0 || IsRecomputed(*value)) continue;
    xla::Shape shape = value->shape();
    xla::LayoutUtil::SetToDefaultLayout(&shape);
    const auto number = static_cast<int64_t>(taken_.size());
    made_[value] =
        builder.AddInstruction(xla::HloInstruction::CreateParameter(number, shape, absl::StrCat("p", number)));
    taken_.push_back(value);
  }
  builder.AddInstruction(xla::HloInstruction::CreateTuple({}));  // Replaced once the results are known.
  const Emit emit(module_.AddEntryComputation(builder.Build()));
  for (const Value value : in_order) {
    if (needed.count(value) == 0 || made_.count(value) != 0) continue;
    std::vector<Value> operands;
    for (const xla::HloInstruction* const operand : value->operands()) operands.push_back(made_.at(operand));
    made_[value] = emit.Add(value->CloneWithNewOperands(value->shape(), operands));
    made_[value]->set_metadata({});
  }
}

std::string Recomputation::Finished(const std::vector<Value>& results) {
  computation()->set_root_instruction(Emit(computation()).Tuple(results), /*accept_different_shape=*/true);
  module_.mutable_config().SetDefaultComputationLayout(computation()->ComputeProgramShape());
  const std::string serialized = module_.ToProto().SerializeAsString();
  std::string packed;
  tsl::port::Snappy_Compress(serialized.data(), serialized.size(), &packed);
  return absl::WebSafeBase64Escape(packed);
}

Checks::Checks(const Options& options, const std::vector<Value>& operations)
    : options_(options), unobserved_(UnobservedSpecials(options, options.stops() ? operations : std::vector<Value>())) {
  if (!options.stops()) return;
  for (const Value operation : operations) {
    joined_[operation] = operation;
    if (!operation->IsElementwise()) continue;
    for (const Value operand : operation->operands()) {
      if (!operand->IsElementwise() && !Computes(*operand)) continue;
      if (!xla::ShapeUtil::SameDimensions(operand->shape(), operation->shape())) continue;
      joined_[GroupOf(operand)] = GroupOf(operation);
    }
  }
}

const xla::HloInstruction* Checks::GroupOf(const xla::HloInstruction* operation) {
  const xla::HloInstruction* group = operation;
  while (joined_.at(group) != group) group = joined_.at(group);
  while (operation != group) operation = std::exchange(joined_.at(operation), group);
  return group;
}

void Checks::Note(const xla::HloInstruction& operation, Value wide, Value judged, Value result) {
  const Specials specials = options_.stops() ? SpecialsOf(options_, operation) : 0;
  if (specials == 0) return;
  const bool half = operation.shape().element_type() == xla::F16;
  CheckedOperation checked;
  checked.wide = wide;
  checked.judged = judged;
  checked.elementwise = operation.IsElementwise();
  checked.converts = operation.opcode() == HloOpcode::kConvert;
  checked.pole = options_.div0 ? PoleOperand(operation.opcode()) : -1;
  checked.limit = kInfinite + 1;
  if (checked.pole >= 0) checked.limit = kInfinite;
  if (half && options_.oflo) checked.limit = kAboveHalf;
  const bool f8 = OverflowsF8(operation);
  if (f8) checked.limit = 1;  // Any value but 0 stops the program.
  const std::string& type = operation.metadata().op_type();
  checked.line =
      absl::StrCat(count_++,
                   f8     ? " f8 "
                   : half ? " half "
                          : " float ",
                   type.empty() ? xla::HloOpcodeString(operation.opcode()) : type, " ", NameOf(operation), " ");
  const auto unobserved = unobserved_.find(&operation);
  if (unobserved != unobserved_.end()) ChooseScanned(checked, unobserved->second, result);
  const auto [part, is_new] = part_of_.emplace(GroupOf(&operation), parts_.size());
  if (!is_new && parts_[part->second].size() == kCodes) part->second = parts_.size();
  if (part->second == parts_.size()) parts_.emplace_back();
  parts_[part->second].push_back(std::move(checked));
}

// Chooses the buffer in which a run scans a result, preferably one that exists anyway. Products are stored in float32,
// and values computed from them in float16. If overflow is bounded, an infinity exists only in float32.
void Checks::ChooseScanned(const CheckedOperation& checked, Specials specials, Value result) {
  const bool half = result->shape().element_type() == xla::F16;
  const bool stored = !checked.elementwise || (checked.converts && !checked.wide->IsElementwise());
  const bool infinity = (specials & kInfinity) != 0;
  const bool bounded = infinity && !options_.oflo;
  if (half && !stored && !bounded) {
    scanned_.push_back(result);
    limits_.push_back(kInfiniteHalf + (infinity ? 0 : 1));
    return;
  }
  scanned_.push_back(checked.wide);
  const bool overflows = half && options_.oflo && infinity;
  if (overflows) {
    limits_.push_back(checked.judged == checked.wide ? kAboveHalf : kAboveLargest);
  } else {
    limits_.push_back(std::min(checked.limit, kInfinite + (infinity ? 0 : 1)));
  }
}

// Returns a mask for an elementwise result: true for the elements that the enclosing TensorFlow operation uses. Some
// TensorFlow operations, such as `Erfc`, compute two results and select one. The other result must not stop the
// program. Returns null if all elements are used.
Value Checks::Reaches(const Emit& emit, Value value) {
  const auto [entry, is_new] = reaches_.emplace(value, nullptr);
  if (!is_new || value->users().empty() || value == value->parent()->root_instruction()) return entry->second;
  const auto noted = [&](Value condition) { return *made_.insert(condition).first; };
  Value reaches = nullptr;
  for (const Value user : std::vector<Value>(value->users().begin(), value->users().end())) {
    const bool unused = user->users().empty() && user != user->parent()->root_instruction();
    if (unused || made_.count(user) != 0) continue;
    if (!IsWithinOperation(*value, *user)) return nullptr;
    Value condition_of_user = Reaches(emit, user);
    if (IsSelectOf(*user, *value) && user->operand(1) != user->operand(2)) {
      const Value condition = user->mutable_operand(0);
      const Value selected = user->operand(1) == value ? condition : noted(emit.Unary(HloOpcode::kNot, condition));
      condition_of_user = condition_of_user == nullptr ? selected : noted(emit.And(condition_of_user, selected));
    }
    if (condition_of_user == nullptr) return nullptr;
    reaches = reaches == nullptr ? condition_of_user : noted(emit.Or(reaches, condition_of_user));
  }
  return reaches_[value] = reaches;
}

// Returns the largest stop code over all elements; 0 if no operation stops the program. A code consists of 32 bits:
//
//   8 bits    the position of the first operation that stops the program, counted down from 255
//   23 bits   the upper bits of the magnitude of its result
//   1 bit     set if it divided by zero
//
// So the maximum over all elements finds the first operation of the group.
Value Checks::StopCodes(const Emit& emit, const Recomputation& recomputed, const CheckedOperations& operations) {
  std::unordered_map<const xla::HloInstruction*, Value> magnitudes;
  const auto magnitude = [&](Value value) {
    Value& bits = magnitudes[value];
    if (bits == nullptr) bits = emit.And(emit.Bits(value, xla::U32), emit.Filled(kMagnitude, value));
    return bits;
  };
  Value codes = nullptr;
  uint32_t number = kCodes;
  for (const CheckedOperation& checked : operations) {
    const Value wide = recomputed.Of(checked.wide);
    const Value result = magnitude(recomputed.Of(checked.judged));
    const Value infinite = emit.Filled(kInfinite, result);
    Value stops = emit.Compare(result, emit.Filled(checked.limit, result), xla::ComparisonDirection::kGe);
    Value word =
        emit.Plus(emit.And(emit.Down(result, 7), emit.Filled(0xfffffeu, result)), emit.Filled(number-- << 24, result));
    if (checked.converts) {  // For conversions, the operand is the result itself.
      stops = emit.And(stops, emit.Compare(result, infinite, xla::ComparisonDirection::kLt));
    } else if (checked.elementwise) {
      Value taken = nullptr;  // The largest magnitude among the operands.
      for (const Value operand : wide->operands()) {
        if (operand->shape().element_type() != xla::F32) continue;
        const Value operand_magnitude = magnitude(operand);
        taken = taken == nullptr ? operand_magnitude : emit.Binary(HloOpcode::kMaximum, taken, operand_magnitude);
      }
      if (taken != nullptr) {
        // The operation returned an infinity for finite operands, or a NaN for operands without one.
        const Value made_infinite = emit.Compare(taken, infinite, xla::ComparisonDirection::kLt);
        const Value made_nan = emit.And(emit.Compare(result, infinite, xla::ComparisonDirection::kGt),
                                        emit.Compare(taken, infinite, xla::ComparisonDirection::kLe));
        stops = emit.And(stops, emit.Or(made_infinite, made_nan));
      }
      if (checked.pole >= 0) {
        const Value divisor = magnitude(wide->mutable_operand(checked.pole));
        const Value by_zero = emit.Compare(divisor, emit.Filled(0u, divisor), xla::ComparisonDirection::kEq);
        word = emit.Or(word, emit.Convert(by_zero, xla::U32));
      }
    }
    if (checked.reaches != nullptr) stops = emit.And(stops, recomputed.Of(checked.reaches));
    word = emit.Select(stops, word, emit.Filled(0u, word));
    codes = codes == nullptr ? word : emit.Binary(HloOpcode::kMaximum, codes, word);
  }
  return codes->shape().dimensions().empty()
             ? codes
             : xla::MakeReduceHlo(codes, emit.Scalar(0u), HloOpcode::kMaximum, emit.computation()->parent()).value();
}

// Adds the call that checks the results. Its operands are the flag of a program that was stopped earlier, the state,
// the scanned results, the iterations of the loops, and the parameters of the recomputation.
Value Checks::Failed(const Emit& emit, const Scope& scope) {
  if (scanned_.empty()) return scope.failed;
  std::vector<Value> wanted;
  for (CheckedOperations& part : parts_) {
    for (CheckedOperation& checked : part) {
      if (checked.elementwise) {
        checked.reaches = Reaches(emit, checked.wide);
      } else if (checked.sources.empty()) {
        checked.sources = SourcesOf(*checked.wide);
      }
      wanted.insert(wanted.end(), {checked.wide, checked.judged});
      if (checked.reaches != nullptr) wanted.push_back(checked.reaches);
      wanted.insert(wanted.end(), checked.sources.begin(), checked.sources.end());
    }
  }
  std::vector<Value> operands = {scope.failed, scope.state};
  operands.insert(operands.end(), scanned_.begin(), scanned_.end());
  operands.insert(operands.end(), scope.iterations.begin(), scope.iterations.end());
  Recomputation recomputed(emit.computation(), wanted);
  operands.insert(operands.end(), recomputed.taken().begin(), recomputed.taken().end());
  const std::string what = absl::StrCat(options_.inv ? "inv " : "", options_.div0 ? "div0 " : "",
                                        options_.oflo ? "oflo " : "", options_.nanoo ? "nanoo" : "");
  const Value call = emit.Call(
      kCheck, operands, scope.failed->shape(),
      absl::StrCat("{options = \"", what, "\", loops = \"", absl::StrJoin(scope.loops, " "),
                   "\", limits = array<i64: ", absl::StrJoin(limits_, ", "), ">, ", Recompute(&recomputed), "}"));
  xla::Cast<xla::HloCustomCallInstruction>(call)->set_custom_call_has_side_effect(true);
  scanned_.clear();
  limits_.clear();
  return call;
}

// Lets the recomputation return the stop codes and the sources. Returns attributes of a custom call: the recomputation,
// the number of stop codes and the operations that they distinguish.
std::string Checks::Recompute(Recomputation* recomputed) {
  const Emit emit(recomputed->computation());
  std::vector<Value> results;
  std::vector<Value> sources;
  std::unordered_map<const xla::HloInstruction*, std::size_t> number_of;
  std::string operations;  // One line per operation, and an empty line after the operations of a stop code.
  for (const CheckedOperations& part : parts_) {
    results.push_back(StopCodes(emit, *recomputed, part));
    for (const CheckedOperation& checked : part) {
      std::vector<std::size_t> numbers;
      for (const Value source : checked.sources) {
        const auto [number, is_new] = number_of.emplace(source, sources.size());
        if (is_new) sources.push_back(recomputed->Of(source));
        numbers.push_back(number->second);
      }
      absl::StrAppend(&operations, checked.line, absl::StrJoin(numbers, ","), "\n");
    }
    absl::StrAppend(&operations, "\n");
  }
  const std::size_t codes = results.size();
  results.insert(results.end(), sources.begin(), sources.end());
  return absl::StrCat("words = ", codes, " : i64, operations = \"", absl::StrReplaceAll(operations, {{"\n", "\\0A"}}),
                      "\", program = \"", recomputed->Finished(results), "\"");
}

}  // namespace tensorflow_ipu::precision
