// Ops that control which parts of a program run: `IpuBarrier`, `IpuFence`, `IpuOnce` and `IpuOutlined`.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/compiler/tf2xla/kernels/if_while_utils.h"
#include "tensorflow/compiler/tf2xla/literal_util.h"
#include "tensorflow/compiler/tf2xla/xla_compiler.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/compiler/tf2xla/xla_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "tensorflow_ipu/kernels/lowering/program_kernels.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/literal.h"
#include "xla/shape.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

// Describes the argument of a called function for an input of the operation: a variable, a tensor list or a tensor.
// Fails for a variable without a value.
absl::Status DescribeInput(tf::XlaOpKernelContext* context, int input, tf::XlaCompiler::Argument* argument) {
  if (context->input_type(input) == tf::DT_RESOURCE) {
    tf::XlaResource* resource = nullptr;
    TF_RETURN_IF_ERROR(context->GetResourceInput(input, &resource));
    tf::XlaCompiler::PopulateArgumentFromResource(*resource, argument);
    argument->name.clear();  // With the name, a call with other variables would be compiled again.
    if (!argument->initialized) {
      return absl::InvalidArgumentError(
          absl::StrCat("A function of the program uses the variable `", resource->name(), "` before it has a value."));
    }
    return absl::OkStatus();
  }
  // Loops leave tensor lists for their gradients.
  argument->kind = context->InputExpression(input).kind() == tf::XlaExpression::Kind::kTensorList
                       ? tf::XlaCompiler::Argument::kTensorList
                       : tf::XlaCompiler::Argument::kParameter;
  argument->type = context->input_type(input);
  TF_ASSIGN_OR_RETURN(argument->shape, context->builder()->GetShape(context->Input(input)));
  return absl::OkStatus();
}

bool IsConstant(tf::XlaOpKernelContext* context, int input) {
  return context->InputExpression(input).kind() == tf::XlaExpression::Kind::kConstant;
}

// Compiles the function `f` of the op for the inputs from `first` on. Constant inputs from `first_constant` on, such as
// shapes, become constants of the function. So a call with other constants is compiled separately. The compiler caches
// functions by their arguments.
absl::StatusOr<tf::XlaCompiler::CompilationResult> CompiledFunction(tf::XlaOpKernelContext* context, int first,
                                                                    int first_constant) {
  std::vector<tf::XlaCompiler::Argument> arguments(context->num_inputs() - first);
  for (int i = first; i < context->num_inputs(); ++i) {
    TF_RETURN_IF_ERROR(DescribeInput(context, i, &arguments[i - first]));
  }
  tf::ConvertCompileTimeConstArgumentsToConst(context, &arguments, /*xla_expression_offset=*/first, [&](int i) {
    return i + first >= first_constant && IsConstant(context, i + first);
  });
  tf::XlaCompiler::CompileOptions options;
  options.is_entry_computation = false;
  tf::XlaCompiler::CompilationResult compiled;
  const auto function = AttributeOf<tf::NameAttrList>(context, "f");
  TF_RETURN_IF_ERROR(context->compiler()->CompileFunction(options, function, arguments, &compiled));
  return compiled;
}

// Marks a variable as assigned. Until then, TensorFlow's bridge evaluates indices that depend on the variable at
// compile time, with the value from before the program. The bridge overlooks assignments in loops and branches.
absl::Status MarkAssigned(tf::XlaResource* resource) {
  return resource->kind() == tf::XlaResource::kVariable ? resource->SetValue(resource->value()) : absl::OkStatus();
}

// Assigns `value`, which a function has returned, to the variable of this input.
absl::Status Assign(tf::XlaOpKernelContext* context, const tf::XlaResourceUpdate& update, int input, xla::XlaOp value) {
  if (!update.modified) return absl::OkStatus();
  tf::XlaResource* resource = nullptr;
  TF_RETURN_IF_ERROR(context->GetResourceInput(input, &resource));
  TF_RETURN_IF_ERROR(resource->SetFromPack(update.tensor_array_gradients_accessed, value, context->builder()));
  return MarkAssigned(resource);
}

// Returns the operand for an input: the value of a variable, or the tensor.
absl::Status OperandOf(tf::XlaOpKernelContext* context, int input, xla::XlaOp* operand) {
  if (context->input_type(input) != tf::DT_RESOURCE) {
    *operand = context->Input(input);
    return absl::OkStatus();
  }
  tf::XlaResource* resource = nullptr;
  TF_RETURN_IF_ERROR(context->GetResourceInput(input, &resource));
  return resource->Pack(operand, context->builder());
}

// The loops below run at most one iteration, and XLA does not know their trip count. So XLA moves no operation across
// their ends, and starts no operation after a loop before all inputs of the loop are available. Carried values stay in
// their memory. A custom call that returns its operands in place would not suffice: XLA copies the results of
// elementwise operations before such a call.

// The values that a loop carries. The first is a token, an int32 scalar that is passed on unchanged and becomes
// available when the loop has ended. The shapes of the other values do not change.
using Carried = std::vector<xla::XlaOp>;

// The body of a loop. The token that it returns must depend on the token that it receives.
using Iteration = std::function<Carried(xla::XlaBuilder* builder, const Carried& carried)>;

std::vector<xla::XlaOp> Elements(xla::XlaOp tuple, int64_t first, std::size_t count) {
  std::vector<xla::XlaOp> elements;
  for (std::size_t i = 0; i < count; ++i) {
    elements.push_back(xla::GetTupleElement(tuple, first + static_cast<int64_t>(i)));
  }
  return elements;
}

// Returns the values after an optimization barrier.
std::vector<xla::XlaOp> Barred(const std::vector<xla::XlaOp>& values) {
  const xla::XlaOp barred = xla::OptimizationBarrier(xla::Tuple(values.front().builder(), values));
  return Elements(barred, 0, values.size());
}

// Returns `goes`, the condition for another iteration, and passes on the token. The custom call hides both values from
// XLA.
xla::XlaOp Step(Carried* carried, bool goes) {
  const xla::Shape number = xla::ShapeUtil::MakeShape(xla::S32, {});
  const xla::Shape results = xla::ShapeUtil::MakeTupleShape({xla::ShapeUtil::MakeShape(xla::PRED, {}), number});
  xla::XlaOp& token = carried->front();
  const xla::XlaOp step = TypedCall(token.builder(), "ipu_fence", {token}, results, CallAttributes({{"goes", goes}}));
  token = xla::GetTupleElement(step, 1);
  return xla::GetTupleElement(step, 0);
}

xla::XlaOp Packed(xla::XlaOp goes, Carried carried) {
  carried.insert(carried.begin(), goes);
  return xla::Tuple(goes.builder(), carried);
}

// With `runs`, adds a loop that runs once if `runs` is true, and else not at all. Without `runs`, adds a loop that runs
// once, whose condition custom calls return. If XLA's operations counted iterations, XLA would compile code for each
// loop.
absl::StatusOr<Carried> Loop(const std::optional<xla::XlaOp>& runs, Carried carried, const Iteration& iteration) {
  const xla::XlaOp goes = runs ? *runs : Step(&carried, /*goes=*/true);
  const xla::XlaOp initial = Packed(goes, carried);
  xla::XlaBuilder* const builder = initial.builder();
  TF_ASSIGN_OR_RETURN(const xla::Shape shape, builder->GetShape(initial));
  const std::unique_ptr<xla::XlaBuilder> condition_builder = builder->CreateSubBuilder("goes_on");
  TF_ASSIGN_OR_RETURN(
      const xla::XlaComputation condition,
      condition_builder->Build(xla::GetTupleElement(xla::Parameter(condition_builder.get(), 0, shape, "carried"), 0)));
  const std::unique_ptr<xla::XlaBuilder> inside = builder->CreateSubBuilder("once");
  const xla::XlaOp parameter = xla::Parameter(inside.get(), 0, shape, "carried");
  Carried results = iteration(inside.get(), Elements(parameter, 1, carried.size()));
  const xla::XlaOp repeats = runs ? xla::ConstantR0<bool>(inside.get(), false) : Step(&results, /*goes=*/false);
  TF_ASSIGN_OR_RETURN(const xla::XlaComputation body, inside->Build(Packed(repeats, results)));
  return Elements(xla::While(condition, body, initial), 1, carried.size());
}

// XLA moves no computation across this op. TensorFlow lowers its own barrier through MLIR, which takes a hundred times
// as long.
REGISTER_OP("IpuBarrier")
    .Input("values: T")
    .Output("barred: T")
    .Attr("T: list(type) >= 1")
    .SetShapeFn(ShapesOfInputs<>);

// Limits the lifetime of the tensors from which `values` are computed: operations that use `fenced` do not read these
// tensors, because XLA cannot fuse across this op. A loop of one iteration returns the values.
REGISTER_OP("IpuFence")
    .Input("token: int32")
    .Input("values: T")
    .Output("passed: int32")
    .Output("fenced: T")
    .Attr("T: list(type) >= 0")
    .SetShapeFn(ShapesOfInputs<>);

std::vector<xla::XlaOp> InputsOf(tf::XlaOpKernelContext* context) {
  std::vector<xla::XlaOp> inputs;
  for (int i = 0; i < context->num_inputs(); ++i) inputs.push_back(context->Input(i));
  return inputs;
}

absl::Status LowerBarrier(tf::XlaOpKernelContext* context) {
  const std::vector<xla::XlaOp> barred = Barred(InputsOf(context));
  for (int i = 0; i < context->num_outputs(); ++i) context->SetOutput(i, AtRunTime(context, barred[i]));
  return absl::OkStatus();
}

absl::Status LowerFence(tf::XlaOpKernelContext* context) {
  // Without the barrier, XLA would find that the loop does not change the values.
  const auto iteration = [](xla::XlaBuilder*, const Carried& carried) { return Barred(carried); };
  return SetOutputs(context, Loop(/*runs=*/{}, InputsOf(context), iteration));
}

REGISTER_XLA_OP(Name("IpuBarrier"), Lowering<LowerBarrier>);
REGISTER_XLA_OP(Name("IpuFence"), Lowering<LowerFence>);

// Runs a function once or skips it, as a loop of at most one iteration. So the function updates in place, and no
// operation is moved across its ends. `tf.while_loop` would do the same, but takes 15 to 25 ms in Python, and more time
// in TensorFlow's bridge.
//
// The function takes `token`, `before` and `captured`, and returns new values for `before`. It runs if `runs` is true.
// `passed` equals `token`, and is available once the function has run.
REGISTER_OP("IpuOnce")
    .Input("runs: bool")
    .Input("token: int32")
    .Input("before: T")
    .Input("captured: captured_types")
    .Output("passed: int32")
    .Output("results: T")
    .Attr("T: list(type) >= 0")
    .Attr("captured_types: list(type) >= 0")
    .Attr("f: func")
    .SetIsStateful()
    .SetShapeFn(ShapesOfInputs<1>);

// The inputs of the op. The function's arguments begin with `token`.
constexpr int kRuns = 0;
constexpr int kToken = 1;
constexpr int kBefore = 2;

xla::XlaOp ConstantOf(xla::XlaBuilder* builder, const tf::Tensor& value) {
  xla::BorrowingLiteral literal;
  const absl::Status status = tf::HostTensorToBorrowingLiteral(value, &literal);
  return status.ok() ? xla::ConstantLiteral(builder, literal) : builder->ReportError(status);
}

absl::Status LowerOnce(tf::XlaOpKernelContext* context) {
  const int captured = kBefore + context->num_outputs() - 1;
  TF_ASSIGN_OR_RETURN(const tf::XlaCompiler::CompilationResult compiled, CompiledFunction(context, kToken, captured));
  // The loop carries the token, the values that change and the values that are only read. `place` is the position of
  // each input among them.
  constexpr int kNowhere = -1;
  std::vector<int> place(context->num_inputs(), kNowhere);
  std::vector<int> inputs;
  const auto carry = [&](int input) {
    if (place[input] != kNowhere) return;
    place[input] = static_cast<int>(inputs.size());
    inputs.push_back(input);
  };
  for (int input = kToken; input < captured; ++input) carry(input);
  for (const int argument : compiled.input_mapping) carry(argument + kToken);
  Carried begin(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) TF_RETURN_IF_ERROR(OperandOf(context, inputs[i], &begin[i]));
  const auto iteration = [&](xla::XlaBuilder* builder, const Carried& carried) {
    // These tensors do not change in the function. Without the barrier, XLA would hoist computations on them out of the
    // loop.
    std::vector<std::size_t> fixed;
    std::vector<xla::XlaOp> values;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const bool is_captured = inputs[i] >= captured && context->input_type(inputs[i]) != tf::DT_RESOURCE;
      if (inputs[i] != kToken && !is_captured) continue;
      fixed.push_back(i);
      values.push_back(carried[i]);
    }
    const std::vector<xla::XlaOp> barred = Barred(values);
    Carried arguments = carried;
    for (std::size_t i = 0; i < fixed.size(); ++i) arguments[fixed[i]] = barred[i];
    std::vector<xla::XlaOp> operands;
    for (const int argument : compiled.input_mapping) operands.push_back(arguments[place[argument + kToken]]);
    const xla::XlaOp results = xla::Call(builder, *compiled.computation, operands);
    Carried changed = carried;
    changed.front() = barred.front();
    int64_t result = 0;
    for (int i = kBefore; i < captured; ++i) {
      const tf::XlaOutputDescription& output = compiled.outputs[i - kBefore];
      changed[place[i]] =
          output.is_constant ? ConstantOf(builder, output.constant_value) : xla::GetTupleElement(results, result++);
    }
    for (const tf::XlaResourceUpdate& update : compiled.resource_updates) {
      changed[place[update.input_index + kToken]] = xla::GetTupleElement(results, result++);
    }
    return changed;
  };
  const std::optional<xla::XlaOp> runs =
      IsConstant(context, kRuns) ? std::nullopt : std::make_optional(context->Input(kRuns));
  TF_ASSIGN_OR_RETURN(const Carried end, Loop(runs, begin, iteration));
  for (int i = 0; i < context->num_outputs(); ++i) context->SetOutput(i, end[i]);
  for (const tf::XlaResourceUpdate& update : compiled.resource_updates) {
    const int input = update.input_index + kToken;
    TF_RETURN_IF_ERROR(Assign(context, update, input, end[place[input]]));
  }
  return absl::OkStatus();
}

REGISTER_XLA_OP(Name("IpuOnce").AllowResourceTypes().AllowVariantTypes(), Lowering<LowerOnce>);

// Calls a function whose code is in the program once, however often it is called.
//
// TensorFlow inlines calls of its functions before it compiles a graph, but not this op.
REGISTER_OP("IpuOutlined")
    .Input("inputs: input_types")
    .Output("outputs: output_types")
    .Attr("input_types: list(type) >= 0")
    .Attr("output_types: list(type) >= 0")
    .Attr("output_shapes: list(shape) >= 0")
    .Attr("f: func")
    .SetIsStateful()
    .SetShapeFn(StatedShapes);

// The computations that were added to a builder. The builder itself would add a computation again at each call. The map
// keeps each computation alive, so that its address stays unique.
using AddedComputations =
    std::map<const xla::XlaComputation*, std::pair<std::shared_ptr<xla::XlaComputation>, xla::XlaComputationId>>;

absl::Status LowerOutlined(tf::XlaOpKernelContext* context) {
  TF_ASSIGN_OR_RETURN(const tf::XlaCompiler::CompilationResult compiled,
                      CompiledFunction(context, /*first=*/0, /*first_constant=*/0));
  std::vector<xla::XlaOp> operands;
  for (const int i : compiled.input_mapping) {
    TF_RETURN_IF_ERROR(OperandOf(context, i, &operands.emplace_back()));
  }
  TF_ASSIGN_OR_RETURN(AddedComputations* const added, OfComputation<AddedComputations>::Find(context));
  auto& [computation, id] = (*added)[compiled.computation.get()];
  if (computation == nullptr) {
    computation = compiled.computation;
    id = context->builder()->AddSubComputation(*computation);
  }
  const xla::XlaOp results = xla::Call(context->builder(), id, operands);
  int place = 0;
  for (int i = 0; i < context->num_outputs(); ++i) {
    const tf::XlaOutputDescription& output = compiled.outputs[i];
    if (output.is_constant) {
      context->SetConstantOutput(i, output.constant_value);
    } else if (output.is_tensor_list) {
      context->SetTensorListOutput(i, xla::GetTupleElement(results, place++));
    } else {
      // XLA's search for values at compile time ends the process at an element of a call's result.
      context->SetOutput(i, ResultOf(context, results, place++));
    }
  }
  for (const tf::XlaResourceUpdate& update : compiled.resource_updates) {
    const xla::XlaOp value = xla::GetTupleElement(results, place++);
    TF_RETURN_IF_ERROR(Assign(context, update, update.input_index, value));
  }
  return absl::OkStatus();
}

REGISTER_XLA_OP(Name("IpuOutlined").AllowResourceTypes().AllowVariantTypes(), Lowering<LowerOutlined>);

// Lowers a loop or a branch of TensorFlow, and marks the variables that it assigns.
absl::Status LowerAssigning(tf::XlaOpKernelContext* context) {
  std::vector<std::pair<tf::XlaResource*, xla::XlaOp>> before;
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (context->input_type(i) != tf::DT_RESOURCE) continue;
    tf::XlaResource* resource = nullptr;
    TF_RETURN_IF_ERROR(context->GetResourceInput(i, &resource));
    before.emplace_back(resource, resource->value());
  }
  LowerAsXla(context);
  for (const auto& [resource, value] : before) {
    const bool assigned = resource->value().valid() && !resource->value().IsIdenticalTo(value);
    if (assigned) TF_RETURN_IF_ERROR(MarkAssigned(resource));
  }
  return absl::OkStatus();
}

const bool assigning_registered = RegisterProgramKernel<Lowering<LowerAssigning>>("Case") &&
                                  RegisterProgramKernel<Lowering<LowerAssigning>>("If") &&
                                  RegisterProgramKernel<Lowering<LowerAssigning>>("While");

}  // namespace
}  // namespace tensorflow_ipu
