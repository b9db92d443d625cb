#include "tensorflow_ipu/kernels/precision/checks.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tensorflow_ipu/kernels/precision/wide.h"
#include "xla/hlo/ir/hlo_instructions.h"
#include "xla/hlo/ir/hlo_module.h"

namespace tensorflow_ipu::precision {

namespace {

using xla::HloOpcode;

constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kInfinite = 0x7f800000;   // The bits of float32's.
constexpr uint32_t kAboveHalf = 0x477ff000;  // Of 65520, which is above float16.

// So many sites can a word tell apart.
constexpr std::size_t kSites = 255;

// Which operand makes the result infinite when it is 0; -1 for operations that have no such.
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

// Whether the result is a finite number of float16 wherever the operands are numbers.
bool IsBounded(HloOpcode opcode) {
  return opcode == HloOpcode::kTanh || opcode == HloOpcode::kLogistic || opcode == HloOpcode::kErf ||
         opcode == HloOpcode::kAtan2;
}

bool IsFloat(const xla::Shape& shape) {
  return shape.IsArray() && (shape.element_type() == xla::F16 || shape.element_type() == xla::F32);
}

// Whether the value comes from outside of the computation, or from what nobody checks.
bool IsSource(const xla::HloInstruction& operation) {
  if (!IsFloat(operation.shape())) return false;
  switch (operation.opcode()) {
    case HloOpcode::kParameter:
    case HloOpcode::kGetTupleElement:
    case HloOpcode::kCustomCall:
      break;
    case HloOpcode::kConstant:
      return operation.shape().dimensions().size() > 0;
    default:
      return false;
  }
  // What is changed in place cannot be looked at behind it without a copy.
  return std::none_of(operation.users().begin(), operation.users().end(), [](const Value user) {
    return user->opcode() == HloOpcode::kDynamicUpdateSlice || user->opcode() == HloOpcode::kScatter ||
           user->opcode() == HloOpcode::kTuple || user->opcode() == HloOpcode::kCustomCall ||
           user->opcode() == HloOpcode::kCall;
  });
}

}  // namespace

Checks::Checks(const Options& options, const std::vector<Value>& operations) : options_(options) {
  if (!options.stops()) return;
  for (const Value operation : operations) {
    joined_[operation] = operation;
    if (operation->IsElementwise()) {
      for (const Value operand : operation->operands()) {
        if (!operand->IsElementwise() && !Computes(*operand)) continue;
        if (!xla::ShapeUtil::SameDimensions(operand->shape(), operation->shape())) continue;
        joined_[GroupOf(operand)] = GroupOf(operation);
      }
    }
    Sources& from = from_[operation];
    if (IsSource(*operation)) {
      from = {static_cast<int64_t>(sources_.size())};
      sources_.push_back(operation);
      continue;
    }
    for (const Value operand : operation->operands()) {
      const Sources& others = from_[operand];
      Sources both;
      std::set_union(from.begin(), from.end(), others.begin(), others.end(), std::back_inserter(both));
      from_[operation] = std::move(both);
    }
  }
}

const xla::HloInstruction* Checks::GroupOf(const xla::HloInstruction* operation) const {
  while (joined_.at(operation) != operation) operation = joined_.at(operation);
  return operation;
}

// Of operations on elements none, since these are compared with the elements that they took.
Checks::Sources Checks::SourcesOf(const xla::HloInstruction& operation, Value wide) {
  if (operation.IsElementwise()) return {};
  if (operation.opcode() != HloOpcode::kDot && operation.opcode() != HloOpcode::kConvolution) {
    return from_[&operation];
  }
  // Products have their operands in memory.
  Sources direct;
  for (const Value operand : wide->operands()) {
    direct.push_back(static_cast<int64_t>(sources_.size()));
    sources_.push_back(operand);
  }
  return direct;
}

void Checks::Note(const xla::HloInstruction& operation, Value wide) {
  if (!options_.stops() || IsBounded(operation.opcode()) || xla::ShapeUtil::IsZeroElementArray(operation.shape())) {
    return;
  }
  const bool half = operation.shape().element_type() == xla::F16;
  Site site;
  site.wide = wide;
  site.elementwise = operation.IsElementwise();
  site.converts = operation.opcode() == HloOpcode::kConvert;
  site.pole = options_.div0 ? PoleOperand(operation.opcode()) : -1;
  site.limit = kInfinite + 1;
  if (!half && !options_.inv && site.pole < 0) return;  // Float16 alone overflows.
  if (site.pole >= 0) site.limit = kInfinite;
  if (half && options_.oflo) site.limit = kAboveHalf;
  const xla::OpMetadata& metadata = operation.metadata();
  site.line = absl::StrCat(count_++, half ? " half " : " float ", metadata.op_type(), " ", metadata.op_name(), " ",
                           absl::StrJoin(SourcesOf(operation, wide), ","));
  const xla::HloInstruction* const group = GroupOf(&operation);
  std::vector<std::vector<Site>>& parts = groups_[group];
  if (parts.empty()) order_.push_back(group);
  if (parts.empty() || parts.back().size() == kSites) parts.emplace_back();
  parts.back().push_back(std::move(site));
}

// For each element the number of the first site that stops the program, counted down from 255, in the upper 8 bits; the
// upper 23 bits of the magnitude there; and whether it was a division by zero. Of all elements, the largest such word.
Value Checks::Word(const Emit& emit, const std::vector<Site>& sites) {
  std::unordered_map<const xla::HloInstruction*, Value> known;
  const auto magnitude = [&](Value value) {
    Value& bits = known[value];
    if (bits == nullptr) bits = emit.And(emit.Bits(value, xla::U32), emit.Filled(kMagnitude, value));
    return bits;
  };
  Value words = nullptr;
  uint32_t number = kSites;
  for (const Site& site : sites) {
    const Value result = magnitude(site.wide);
    const Value infinite = emit.Filled(kInfinite, result);
    Value stops = emit.Compare(result, emit.Filled(site.limit, result), xla::ComparisonDirection::kGe);
    Value word =
        emit.Plus(emit.And(emit.Down(result, 7), emit.Filled(0xfffffeu, result)), emit.Filled(number-- << 24, result));
    if (site.converts) {  // What it took is what it gave.
      stops = emit.And(stops, emit.Compare(result, infinite, xla::ComparisonDirection::kLt));
    } else if (site.elementwise) {
      Value taken = nullptr;  // The largest magnitude that the operation took.
      for (const Value operand : site.wide->operands()) {
        if (operand->shape().element_type() != xla::F32) continue;
        const Value one = magnitude(operand);
        taken = taken == nullptr ? one : emit.Binary(HloOpcode::kMaximum, taken, one);
      }
      if (taken != nullptr) {
        // It has made what it gave: something infinite of finite numbers, or a NaN without one.
        const Value made_infinite = emit.Compare(taken, infinite, xla::ComparisonDirection::kLt);
        const Value made_nan = emit.And(emit.Compare(result, infinite, xla::ComparisonDirection::kGt),
                                        emit.Compare(taken, infinite, xla::ComparisonDirection::kLe));
        stops = emit.And(stops, emit.Or(made_infinite, made_nan));
      }
      if (site.pole >= 0) {
        const Value divisor = magnitude(site.wide->mutable_operand(site.pole));
        const Value by_zero = emit.Compare(divisor, emit.Filled(0u, divisor), xla::ComparisonDirection::kEq);
        word = emit.Or(word, emit.Convert(by_zero, xla::U32));
      }
    }
    word = emit.Select(stops, word, emit.Filled(0u, word));
    words = words == nullptr ? word : emit.Binary(HloOpcode::kMaximum, words, word);
  }
  return Largest(emit, words);
}

Value Checks::Largest(const Emit& emit, Value words) {
  if (words->shape().dimensions().empty()) return words;
  const xla::Shape scalar = xla::ShapeUtil::MakeShape(xla::U32, {});
  if (larger_ == nullptr) {
    xla::HloComputation::Builder builder("larger");
    const Value a = builder.AddInstruction(xla::HloInstruction::CreateParameter(0, scalar, "a"));
    const Value b = builder.AddInstruction(xla::HloInstruction::CreateParameter(1, scalar, "b"));
    builder.AddInstruction(xla::HloInstruction::CreateBinary(scalar, HloOpcode::kMaximum, a, b));
    larger_ = emit.computation()->parent()->AddEmbeddedComputation(builder.Build());
  }
  std::vector<int64_t> axes(words->shape().dimensions().size());
  for (std::size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
  return emit.Add(xla::HloInstruction::CreateReduce(scalar, words, emit.Scalar(0u), axes, larger_));
}

Value Checks::Failed(const Emit& emit, const Scope& scope) {
  if (groups_.empty()) return scope.failed;
  std::vector<Value> words;
  std::string sites;  // A line each, and an empty one behind those of a word.
  for (const xla::HloInstruction* const group : order_) {
    for (const std::vector<Site>& part : groups_[group]) {
      words.push_back(Word(emit, part));
      for (const Site& site : part) absl::StrAppend(&sites, site.line, "\n");
      absl::StrAppend(&sites, "\n");
    }
  }
  std::vector<Value> operands = {scope.state, scope.failed};
  operands.insert(operands.end(), scope.iterations.begin(), scope.iterations.end());
  operands.insert(operands.end(), words.begin(), words.end());
  operands.insert(operands.end(), sources_.begin(), sources_.end());
  const std::string what = absl::StrCat(options_.inv ? "inv " : "", options_.div0 ? "div0 " : "",
                                        options_.oflo ? "oflo " : "", options_.nanoo ? "nanoo" : "");
  const Value call = emit.Add(xla::HloInstruction::CreateCustomCall(
      xla::ShapeUtil::MakeShape(xla::PRED, {}), operands, kCheck,
      absl::StrCat("{options = \"", what, "\", loops = \"", absl::StrJoin(scope.loops, " "), "\", words = ",
                   words.size(), " : i64, sites = \"", absl::StrReplaceAll(sites, {{"\n", "\\0A"}}), "\"}"),
      xla::CustomCallApiVersion::API_VERSION_TYPED_FFI));
  xla::Cast<xla::HloCustomCallInstruction>(call)->set_custom_call_has_side_effect(true);
  return call;
}

}  // namespace tensorflow_ipu::precision
