#include "tensorflow_ipu/kernels/precision/rewrite.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tensorflow_ipu/kernels/precision/checks.h"
#include "tensorflow_ipu/kernels/precision/rounding.h"
#include "xla/debug_options_flags.h"
#include "xla/hlo/ir/hlo_casting_utils.h"
#include "xla/hlo/ir/hlo_instructions.h"
#include "xla/hlo/ir/hlo_module.h"

namespace tensorflow_ipu::precision {

namespace {

using xla::HloOpcode;

// Visits all computations of a program in order, and adds the rounding and the checks of their operations.
class Rewriter {
 public:
  explicit Rewriter(const Options& options) : options_(options) {}

  // Rewrites the entry computation, which contains `marker`, and all computations that it calls.
  absl::Status Program(xla::HloModule* module, Value marker);

 private:
  // Rewrites a computation, and returns the scope at its end.
  absl::StatusOr<Scope> Computation(xla::HloComputation* computation, Scope scope);
  absl::Status Loop(Value loop, Scope* scope);
  absl::Status Branches(Value conditional, Scope* scope);
  absl::Status Call(Value call, Scope* scope);
  void Operation(Value operation, const Scope& scope, WideValues* wide, Checks* checks);
  Rounding RoundingOf(const xla::HloInstruction& operation) const;
  bool IsReadWide(const xla::HloInstruction& operation) const;
  bool IsShared(const xla::HloInstruction& operation) const;
  Key KeyFor(const xla::HloInstruction& operation, const Scope& scope) const;
  // Returns true if its half partial sums are rounded stochastically.
  bool HasRandomPartials(const xla::HloInstruction& operation) const;
  bool Concerns(const xla::HloInstruction& operation) const;
  bool Concerns(const xla::HloComputation& computation);
  bool ConcernsCalled(const xla::HloInstruction& operation);

  const Options& options_;
  std::unique_ptr<const ReplicaInvariance> invariance_;  // Null if it is not needed.
  uint64_t parts_ = 0;  // The number of operations and computations so far. It determines their keys.
  std::map<const xla::HloComputation*, bool> concerns_;
};

// The attribute that `scopes.stochastic_rounding` sets on instructions.
constexpr char kRoundingAttribute[] = "ipu_stochastic_rounding";

bool Calls(HloOpcode opcode) {
  return opcode == HloOpcode::kWhile || opcode == HloOpcode::kConditional || opcode == HloOpcode::kCall;
}

// Replaces an instruction, which may be the root.
absl::Status Replace(Value instruction, Value replacement) {
  TF_RETURN_IF_ERROR(instruction->ReplaceAllUsesWith(replacement));
  return instruction->parent()->RemoveInstruction(instruction);
}

// Follows a value back through operations that only move it.
Value Source(Value value) {
  while (value->opcode() == HloOpcode::kReshape || value->opcode() == HloOpcode::kCopy ||
         value->opcode() == HloOpcode::kGetTupleElement || value->IsCustomCall(kShared) ||
         (value->opcode() == HloOpcode::kConvert && value->shape() == value->operand(0)->shape())) {
    const Value from = value->mutable_operand(0);
    const bool picks = value->opcode() == HloOpcode::kGetTupleElement && from->opcode() == HloOpcode::kTuple;
    value = picks ? from->mutable_operand(value->tuple_index()) : from;
  }
  return value;
}

// Returns true for a loop whose result is also a result of the enclosing computation, such as an updated variable.
bool IsResult(const Value loop) {
  const Value root = loop->parent()->root_instruction();
  if (loop->opcode() != HloOpcode::kWhile || root->opcode() != HloOpcode::kTuple) return false;
  return std::any_of(root->operands().begin(), root->operands().end(),
                     [&](const Value value) { return Source(value) == loop; });
}

// Returns true if two values are the same, or the same element of the same tuple.
bool AreSame(const xla::HloInstruction* left, const xla::HloInstruction* right) {
  if (left == right) return true;
  return left->opcode() == HloOpcode::kGetTupleElement && right->opcode() == HloOpcode::kGetTupleElement &&
         left->tuple_index() == right->tuple_index() && AreSame(left->operand(0), right->operand(0));
}

// Returns true if a computation restores a value when the program is stopped. Loops restore their results themselves,
// and the counts of feeds stay. A buffer that is updated in place is not restored, because it would have to be copied.
bool IsRestored(Value value, const xla::HloInstruction* before) {
  return value->shape().IsArray() && !AreSame(value, before) &&
         xla::HloPredicateIsNotOp<HloOpcode::kWhile, HloOpcode::kCustomCall, HloOpcode::kDynamicUpdateSlice,
                                  HloOpcode::kScatter>(Source(value));
}

// The custom call that selects between old and new values, depending on the flag of a stopped program:
// `ffi/precision_handlers.cc`.
constexpr char kRestore[] = "ipu_half_restore";

// Extends a computation that returns a tuple: if the program is stopped, it returns the elements of `before`. One call
// selects all elements in their memory, because XLA would compile a kernel for each element.
void Restore(const Emit& emit, Value failed, const std::vector<Value>& before) {
  const Value root = emit.computation()->root_instruction();
  std::vector<Value> elements, operands = {failed};
  std::vector<int64_t> restored;
  for (int64_t i = 0; i < static_cast<int64_t>(before.size()); ++i) {
    elements.push_back(root->opcode() == HloOpcode::kTuple ? root->mutable_operand(i) : emit.Element(root, i));
    if (before[i] != nullptr && IsRestored(elements[i], before[i])) restored.push_back(i);
  }
  if (restored.empty()) return;
  std::vector<xla::Shape> shapes;
  std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>> places;
  for (const int64_t i : restored) {
    const auto number = static_cast<int64_t>(places.size());
    places.push_back({{number}, {number + 1, {}}});
    operands.push_back(before[i]);
    shapes.push_back(before[i]->shape());
  }
  for (const int64_t i : restored) operands.push_back(elements[i]);
  const Value call = emit.Call(kRestore, operands, xla::ShapeUtil::MakeTupleShape(shapes), "");
  xla::Cast<xla::HloCustomCallInstruction>(call)->set_output_to_operand_aliasing(places);
  for (std::size_t i = 0; i < restored.size(); ++i) elements[restored[i]] = emit.Element(call, static_cast<int64_t>(i));
  emit.computation()->set_root_instruction(emit.Tuple(elements));
}

absl::Status Rewriter::Program(xla::HloModule* module, Value marker) {
  if (options_.stable || options_.rounding == Rounding::kIdenticalOnly) {
    invariance_ = std::make_unique<const ReplicaInvariance>(*module);
  }
  xla::HloComputation* const entry = module->entry_computation();
  const Emit emit(entry);
  Scope scope;
  scope.key = {emit.Element(marker, 1), emit.Element(marker, 2)};
  scope.shared = {emit.Element(marker, 3), emit.Element(marker, 4)};
  scope.state = emit.Element(marker, 0);
  scope.failed = emit.Scalar(false);
  const absl::StatusOr<Scope> end = Computation(entry, std::move(scope));
  if (!end.ok() || !options_.stops() || !entry->root_instruction()->shape().IsTuple()) return end.status();
  std::vector<Value> previous(entry->root_instruction()->shape().tuple_shapes().size(), nullptr);
  module->input_output_alias_config().ForEachAlias(
      [&](const xla::ShapeIndex& output, const xla::HloInputOutputAliasConfig::Alias& alias) {
        if (output.size() != 1 || !alias.parameter_index.empty()) return;
        previous[output[0]] = entry->parameter_instruction(alias.parameter_number);
      });
  Restore(emit, end->failed, previous);
  return absl::OkStatus();
}

absl::StatusOr<Scope> Rewriter::Computation(xla::HloComputation* computation, Scope scope) {
  const std::vector<Value> operations = computation->MakeInstructionPostOrder();
  WideValues wide;
  Checks checks(options_, operations);
  for (const Value operation : operations) {
    if (!Calls(operation->opcode())) {
      Operation(operation, scope, &wide, &checks);
      continue;
    }
    if (!ConcernsCalled(*operation)) continue;
    // Variables that a loop assigns are not restored after it. So the loop must not start once the program is stopped.
    if (options_.stops() && IsResult(operation)) scope.failed = checks.Failed(Emit(computation), scope);
    const HloOpcode opcode = operation->opcode();
    TF_RETURN_IF_ERROR(opcode == HloOpcode::kWhile         ? Loop(operation, &scope)
                       : opcode == HloOpcode::kConditional ? Branches(operation, &scope)
                                                           : Call(operation, &scope));
  }
  if (options_.stops()) scope.failed = checks.Failed(Emit(computation), scope);
  return scope;
}

absl::Status Rewriter::Loop(Value loop, Scope* scope) {
  const Emit emit(loop->parent(), loop);
  Scope first = scope->Inside(emit, ++parts_);
  first.iterations.push_back(emit.Scalar<int32_t>(0));
  first.loops.push_back(NameOf(*loop));
  const Value start = emit.Tuple({loop->mutable_operand(0), first.Packed(emit)});
  const xla::Shape packed = start->shape().tuple_shapes(1);

  xla::HloComputation* const body = loop->while_body();
  const Emit in_body(body);
  const Scope inside = Scope::Of(in_body, Enter(body, packed), first);
  TF_ASSIGN_OR_RETURN(Scope end, Computation(body, inside));
  if (options_.stops()) {
    const Value before = in_body.Element(body->parameter_instruction(0), 0);
    std::vector<Value> previous;
    for (int64_t i = 0; i < static_cast<int64_t>(before->shape().tuple_shapes().size()); ++i) {
      previous.push_back(in_body.Element(before, i));
    }
    Restore(in_body, end.failed, previous);
  }
  end.key = NextKey(in_body, inside.key);
  end.shared = NextKey(in_body, inside.shared);
  end.iterations.back() = in_body.Plus(inside.iterations.back(), in_body.Scalar<int32_t>(1));
  Leave(in_body, end.Packed(in_body));

  xla::HloComputation* const condition = loop->while_condition();
  const Emit in_condition(condition);
  const Scope before_condition =
      Scope::Of(in_condition, Enter(condition, packed), first).Inside(in_condition, ++parts_);
  TF_ASSIGN_OR_RETURN(const Scope after_condition, Computation(condition, before_condition));
  if (options_.stops()) {
    const Value goes_on = in_condition.Unary(HloOpcode::kNot, after_condition.failed);
    condition->set_root_instruction(in_condition.And(condition->root_instruction(), goes_on));
  }

  const Value replacement = emit.Add(xla::HloInstruction::CreateWhile(start->shape(), condition, body, start));
  replacement->set_frontend_attributes(loop->frontend_attributes());
  scope->failed = emit.Element(emit.Element(replacement, 1), Scope::kFailed);
  return Replace(loop, emit.Element(replacement, 0));
}

absl::Status Rewriter::Branches(Value conditional, Scope* scope) {
  const Emit emit(conditional->parent(), conditional);
  std::vector<Value> operands;
  std::vector<xla::HloComputation*> branches;
  for (int64_t i = 0; i < conditional->branch_count(); ++i) {
    xla::HloComputation* const branch = conditional->branch_computation(static_cast<int>(i));
    const Scope first = scope->Inside(emit, ++parts_);
    operands.push_back(emit.Tuple({conditional->mutable_operand(i + 1), first.Packed(emit)}));
    const Emit in_branch(branch);
    const Scope inside = Scope::Of(in_branch, Enter(branch, operands.back()->shape().tuple_shapes(1)), first);
    TF_ASSIGN_OR_RETURN(const Scope end, Computation(branch, inside));
    Leave(in_branch, end.failed);
    branches.push_back(branch);
  }
  const Value replacement = emit.Add(xla::HloInstruction::CreateConditional(
      xla::ShapeUtil::MakeTupleShape({conditional->shape(), scope->failed->shape()}), conditional->mutable_operand(0),
      branches, operands));
  replacement->set_frontend_attributes(conditional->frontend_attributes());
  scope->failed = emit.Element(replacement, 1);
  return Replace(conditional, emit.Element(replacement, 0));
}

absl::Status Rewriter::Call(Value call, Scope* scope) {
  const Emit emit(call->parent(), call);
  xla::HloComputation* const called = call->to_apply();
  Scope first = scope->Inside(emit, ++parts_);
  const Value packed = first.Packed(emit);
  const Emit inside(called);
  const Value parameter = called->AddParameter(
      xla::HloInstruction::CreateParameter(called->num_parameters(), packed->shape(), "precision"));
  TF_ASSIGN_OR_RETURN(const Scope end, Computation(called, Scope::Of(inside, parameter, first)));
  Leave(inside, end.failed);
  std::vector<Value> operands(call->operands().begin(), call->operands().end());
  operands.push_back(packed);
  const Value replacement =
      emit.Add(xla::HloInstruction::CreateCall(called->root_instruction()->shape(), operands, called));
  replacement->set_frontend_attributes(call->frontend_attributes());
  scope->failed = emit.Element(replacement, 1);
  return Replace(call, emit.Element(replacement, 0));
}

void Rewriter::Operation(Value operation, const Scope& scope, WideValues* wide, Checks* checks) {
  if (HasRandomPartials(*operation)) {
    const Emit emit(operation->parent(), operation);
    const Key key = KeyOf(emit, KeyFor(*operation, scope), ++parts_);
    CHECK_OK(Replace(operation, WithRandomPartials(emit, *operation, key)));
    return;
  }
  if (!Concerns(*operation)) return;
  const Emit emit(operation->parent(), operation);
  const uint64_t site = ++parts_;
  if (RoundsToF8(*operation)) {
    CHECK_OK(Replace(
        operation, RoundStochastically(emit, core::Operation::kNone, {operation->mutable_operand(0)},
                                       operation->shape(), KeyFor(*operation, scope), site, core::RoundTo::kIntegers)));
    return;
  }
  if (operation->shape().element_type() == xla::F32) {
    checks->Note(*operation, operation, operation, operation);
    return;
  }
  const bool stochastic = RoundingOf(*operation) != Rounding::kNearest;
  const core::Operation inside = stochastic && !options_.stops() ? RoundedInside(*operation) : core::Operation::kNone;
  const Value exact = inside == core::Operation::kNone ? Widened(emit, *operation, *wide) : nullptr;
  Value rounded = exact;
  if (stochastic) {
    // If overflow stops the program, infinities must stay visible.
    const core::RoundTo to = options_.oflo    ? core::RoundTo::kHalvesAndBeyond
                             : options_.nanoo ? core::RoundTo::kHalvesOrNan
                                              : core::RoundTo::kHalves;
    const auto type = options_.stops() || IsReadWide(*operation) ? xla::F32 : xla::F16;
    rounded = RoundStochastically(emit, inside,
                                  exact == nullptr ? InsideOperands(*operation, *wide) : std::vector<Value>{exact},
                                  Emit::Typed(operation, type), KeyFor(*operation, scope), site, to);
  } else if (!options_.oflo) {
    rounded = Bounded(emit, exact, options_.nanoo);
  }
  Value result = emit.Convert(rounded, xla::F16);
  if (!stochastic && operation->user_count() > 1) result = Shared(emit, result);
  if (stochastic && result != rounded) wide->emplace(result, rounded);
  checks->Note(*operation, exact, stochastic && options_.oflo ? rounded : exact, result);
  CHECK_OK(Replace(operation, result));
}

// Returns true if XLA computes with the result in float32.
bool Rewriter::IsReadWide(const xla::HloInstruction& operation) const {
  return std::any_of(operation.users().begin(), operation.users().end(), [&](const Value user) {
    return Concerns(*user) && RoundedInside(*user) == core::Operation::kNone;
  });
}

bool Rewriter::IsShared(const xla::HloInstruction& operation) const {
  return invariance_ != nullptr && invariance_->Holds(operation);
}

// Returns the key of an operation's rounding. Values that are equal on all replicas are rounded equally if the options
// require it, so that weights stay equal.
Key Rewriter::KeyFor(const xla::HloInstruction& operation, const Scope& scope) const {
  return IsShared(operation) ? scope.shared : scope.key;
}

Rounding Rewriter::RoundingOf(const xla::HloInstruction& operation) const {
  const auto& attributes = operation.frontend_attributes().map();
  const auto attribute = attributes.find(kRoundingAttribute);
  if (attribute != attributes.end()) return attribute->second == "on" ? Rounding::kStochastic : Rounding::kNearest;
  if (options_.rounding != Rounding::kIdenticalOnly) return options_.rounding;
  return IsShared(operation) ? Rounding::kStochastic : Rounding::kNearest;
}

bool Rewriter::HasRandomPartials(const xla::HloInstruction& operation) const {
  return HasHalfPartials(operation) && RoundingOf(operation) != Rounding::kNearest;
}

bool Rewriter::Concerns(const xla::HloInstruction& operation) const {
  if (!operation.shape().IsArray()) return false;
  if (RoundsToF8(operation)) return RoundingOf(operation) != Rounding::kNearest;
  if (OverflowsF8(operation)) return options_.oflo;
  const xla::PrimitiveType type = operation.shape().element_type();
  if (type != xla::F16 && !(type == xla::F32 && options_.stops())) return false;
  return Computes(operation);
}

bool Rewriter::Concerns(const xla::HloComputation& computation) {
  const auto [entry, is_new] = concerns_.emplace(&computation, false);
  if (!is_new) return entry->second;
  bool concerns = false;
  for (const xla::HloInstruction* const operation : computation.instructions()) {
    if (Concerns(*operation) || HasRandomPartials(*operation)) concerns = true;
    if (Calls(operation->opcode())) concerns = ConcernsCalled(*operation) || concerns;
  }
  return concerns_[&computation] = concerns;
}

bool Rewriter::ConcernsCalled(const xla::HloInstruction& operation) {
  const auto& called = operation.called_computations();
  return std::any_of(called.begin(), called.end(),
                     [&](const xla::HloComputation* computation) { return Concerns(*computation); });
}

Value MarkerOf(const xla::HloModule& module) {
  for (const Value instruction : module.entry_computation()->instructions()) {
    if (instruction->IsCustomCall(kMarker)) return instruction;
  }
  return nullptr;
}

// Returns true if a program has float16 or the marker.
bool IsRewritten(const xla::HloModuleProto& program) {
  for (const xla::HloComputationProto& computation : program.computations()) {
    for (const xla::HloInstructionProto& instruction : computation.instructions()) {
      if (instruction.shape().element_type() == xla::F16 || instruction.custom_call_target() == kMarker) return true;
    }
  }
  return false;
}

// Returns true if the result of an operation does not change when its operands are widened.
bool IsExact(const xla::HloInstruction& operation) {
  return xla::HloPredicateIsOp<HloOpcode::kAbs, HloOpcode::kClamp, HloOpcode::kCompare, HloOpcode::kMaximum,
                               HloOpcode::kMinimum, HloOpcode::kNegate, HloOpcode::kSelect, HloOpcode::kSign>(
      &operation);
}

// Returns true if an operation of this computation computes the value. XLA may recompute other values, such as
// constants and broadcasts.
bool IsComputed(const xla::HloInstruction& value) {
  return xla::HloPredicateIsNotOp<HloOpcode::kBroadcast, HloOpcode::kConstant, HloOpcode::kCustomCall,
                                  HloOpcode::kGetTupleElement, HloOpcode::kIota, HloOpcode::kParameter>(&value);
}

// Returns true if an operation reads the value in float32: a conversion, or a product or convolution, whose operands
// are in memory.
bool IsReadInFloat32(const xla::HloInstruction& value) {
  return std::any_of(value.users().begin(), value.users().end(), [](const xla::HloInstruction* user) {
    return xla::HloPredicateIsOp<HloOpcode::kConvert, HloOpcode::kDot, HloOpcode::kConvolution>(user) ||
           (xla::HloPredicateIsOp<HloOpcode::kReshape, HloOpcode::kTranspose>(user) && IsReadInFloat32(*user));
  });
}

// Makes XLA compute float16 faster, with the same results. Operations are computed in float32, with a rounding after
// each. A large value that several operations use, or that a sum reads, is computed only once. It is stored in float32
// if a kernel, a product, a cast or a sum reads it.
absl::Status Hasten(xla::HloModule* module) {
  constexpr int64_t kLarge = 4096;
  const auto is_large = [](const xla::HloInstruction* value) {
    return xla::ShapeUtil::ElementsIn(value->shape()) >= kLarge;
  };
  for (xla::HloComputation* const computation : module->MakeNonfusionComputations()) {
    for (const Value operation : computation->MakeInstructionPostOrder()) {
      const Emit emit(computation, operation);
      const bool half = IsHalf(operation->shape());
      const bool takes_half = operation->operand_count() > 0 && IsHalf(operation->operands().back()->shape());
      Value result = operation;
      if ((half && Computes(*operation)) || (takes_half && IsExact(*operation))) {
        result = Widened(emit, *operation, {});
        if (half) result = emit.Convert(result, xla::F16);
        TF_RETURN_IF_ERROR(operation->ReplaceAllUsesWith(result));
      }
      if (half && is_large(result) && result->user_count() > 1 && IsComputed(*result)) {
        const std::vector<Value> users(result->users().begin(), result->users().end());
        const bool wide = IsReadInFloat32(*result);
        const Value shared = Shared(emit, wide ? emit.Convert(result, xla::F32) : result);
        TF_RETURN_IF_ERROR(result->ReplaceUsesWith(users, wide ? emit.Convert(shared, xla::F16) : shared));
      }
    }
    for (const Value operation : computation->MakeInstructionPostOrder()) {
      if (operation->opcode() == HloOpcode::kConvert && operation->operand(0)->opcode() == HloOpcode::kConvert) {
        const Value shared = operation->mutable_operand(0)->mutable_operand(0);
        if (!shared->IsCustomCall(kShared) || operation->shape() != shared->shape()) continue;
        TF_RETURN_IF_ERROR(operation->ReplaceAllUsesWith(shared));
      }
      if (operation->opcode() != HloOpcode::kReduce) continue;
      // The sums of a batch normalization and its result read the same cast.
      const Value cast = Source(operation->mutable_operand(0));
      if (cast->opcode() != HloOpcode::kConvert || !IsHalf(cast->operand(0)->shape()) || !is_large(cast)) continue;
      const std::vector<Value> users(cast->users().begin(), cast->users().end());
      if (users.size() == 1 && users[0]->IsCustomCall(kShared)) continue;
      TF_RETURN_IF_ERROR(cast->ReplaceUsesWith(users, Shared(Emit(computation, cast), cast)));
    }
  }
  return absl::OkStatus();
}

// Returns the text between the quotes of the marker's only attribute.
std::string OptionsText(const Value marker) {
  const std::string text = marker->raw_backend_config_string();
  const std::size_t begin = text.find('"');
  const std::size_t end = text.rfind('"');
  return begin == end ? "" : text.substr(begin + 1, end - begin - 1);
}

// Sets the attributes of operations that TensorFlow has not propagated.
void Attribute(const Options& options, xla::HloModule* module) {
  if (options.attributes.empty()) return;
  for (xla::HloComputation* const computation : module->computations()) {
    for (const Value instruction : computation->instructions()) {
      std::string_view name = instruction->metadata().op_name();
      // After inlining there are several names. The last one includes the names of the calls.
      if (const std::size_t separator = name.rfind(';'); separator != std::string_view::npos)
        name.remove_prefix(separator + 1);
      for (const auto& [attribute, values] : options.attributes) {
        const auto found = values.find(name);
        if (found != values.end()) instruction->add_frontend_attribute(attribute, found->second);
      }
    }
  }
}

// Copies computations so that each loop, branch and call has separate ones, since each has separate keys for rounding.
void Unshare(xla::HloModule* module) {
  std::vector<xla::HloComputation*> waiting = {module->entry_computation()};
  std::vector<const xla::HloComputation*> taken;
  while (!waiting.empty()) {
    xla::HloComputation* const computation = waiting.back();
    waiting.pop_back();
    for (const Value instruction : computation->instructions()) {
      if (!Calls(instruction->opcode())) continue;
      instruction->ReplaceCalledComputations([&](xla::HloComputation* called) {
        if (std::find(taken.begin(), taken.end(), called) != taken.end()) {
          called = module->AddEmbeddedComputation(called->Clone("again"));
        }
        taken.push_back(called);
        waiting.push_back(called);
        return called;
      });
    }
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<xla::XlaComputation>> Rewritten(const xla::XlaComputation& program) {
  if (!IsRewritten(program.proto())) return nullptr;
  TF_ASSIGN_OR_RETURN(const xla::HloModuleConfig config,
                      xla::HloModule::CreateModuleConfigFromProto(program.proto(), xla::GetDebugOptionsFromFlags()));
  TF_ASSIGN_OR_RETURN(const auto module, xla::HloModule::CreateFromProto(program.proto(), config));
  const Value marker = MarkerOf(*module);
  if (marker == nullptr) {
    TF_RETURN_IF_ERROR(Hasten(module.get()));
    return std::make_shared<xla::XlaComputation>(module->ToProto());
  }
  const Options options = Options::Of(OptionsText(marker));
  Attribute(options, module.get());
  Unshare(module.get());
  TF_RETURN_IF_ERROR(RewritePartials(options, module.get()));
  TF_RETURN_IF_ERROR(Rewriter(options).Program(module.get(), marker));
  return std::make_shared<xla::XlaComputation>(module->ToProto());
}

}  // namespace tensorflow_ipu::precision
