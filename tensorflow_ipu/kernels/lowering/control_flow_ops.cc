// Ops that control what a program runs: `IpuBarrier`, `IpuFence`, `IpuOnce` and `IpuOutlined`.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/host/host_device.h"
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

// TensorFlow's bridge takes the value that a variable has before the program for a constant if an index depends on it.
// It does so until the variable is assigned, and overlooks assignments in loops and branches.
absl::Status MarkAssigned(tf::XlaResource* resource) {
  return resource->kind() == tf::XlaResource::kVariable ? resource->SetValue(resource->value()) : absl::OkStatus();
}

// The operand for an input: the value of a variable, or the tensor.
absl::Status OperandOf(tf::XlaOpKernelContext* context, int input, xla::XlaOp* operand) {
  if (context->input_type(input) != tf::DT_RESOURCE) {
    *operand = context->Input(input);
    return absl::OkStatus();
  }
  tf::XlaResource* resource = nullptr;
  TF_RETURN_IF_ERROR(context->GetResourceInput(input, &resource));
  return resource->Pack(operand, context->builder());
}

// Below are loops of one iteration or none, whose trip count XLA does not know. XLA moves nothing across their ends,
// and starts nothing after a loop before all of its inputs are there. Carried values stay in their memory; a custom
// call that returns its operands in place would not do, since XLA copies the results of elementwise operations ahead of
// it.

struct Carried {
  xla::XlaOp token;                // An int32 scalar that passes unchanged: it is known once the loop has ended.
  std::vector<xla::XlaOp> values;  // Their shapes do not change.
};

// The iteration. The `token` that it returns has to depend on the one that it is given.
using Iteration = std::function<Carried(xla::XlaBuilder* builder, const Carried& carried)>;

// What a loop carries ahead of the values: whether it goes on, and `token`.
struct Head {
  xla::XlaOp goes, token;
};

xla::XlaOp Packed(const Head& head, const std::vector<xla::XlaOp>& values) {
  std::vector<xla::XlaOp> all = {head.goes, head.token};
  all.insert(all.end(), values.begin(), values.end());
  return xla::Tuple(head.goes.builder(), all);
}

Head HeadOf(xla::XlaOp all) { return {xla::GetTupleElement(all, 0), xla::GetTupleElement(all, 1)}; }

std::vector<xla::XlaOp> CarriedValues(xla::XlaOp all, std::size_t count) {
  std::vector<xla::XlaOp> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(xla::GetTupleElement(all, 2 + static_cast<int64_t>(i)));
  return values;
}

// Makes what an iteration ends with.
using Next = std::function<Head(xla::XlaBuilder* builder, xla::XlaOp token)>;

absl::StatusOr<Carried> Loop(const Head& head, const std::vector<xla::XlaOp>& values, const Iteration& iteration,
                             const Next& next) {
  const xla::XlaOp initial = Packed(head, values);
  xla::XlaBuilder* const builder = initial.builder();
  TF_ASSIGN_OR_RETURN(const xla::Shape shape, builder->GetShape(initial));
  const std::unique_ptr<xla::XlaBuilder> asks = builder->CreateSubBuilder("goes_on");
  TF_ASSIGN_OR_RETURN(const xla::XlaComputation condition,
                      asks->Build(HeadOf(xla::Parameter(asks.get(), 0, shape, "carried")).goes));
  const std::unique_ptr<xla::XlaBuilder> inside = builder->CreateSubBuilder("once");
  const xla::XlaOp before = xla::Parameter(inside.get(), 0, shape, "carried");
  const Carried after =
      iteration(inside.get(), {.token = HeadOf(before).token, .values = CarriedValues(before, values.size())});
  TF_ASSIGN_OR_RETURN(const xla::XlaComputation body,
                      inside->Build(Packed(next(inside.get(), after.token), after.values)));
  const xla::XlaOp end = xla::While(condition, body, initial);
  return Carried{.token = HeadOf(end).token, .values = CarriedValues(end, values.size())};
}

// Whether a loop goes on, as `attributes` says, and `token` passed on. The custom call hides both from XLA.
Head Step(xla::XlaOp token, const char* attributes) {
  const xla::Shape number = xla::ShapeUtil::MakeShape(xla::S32, {});
  const xla::Shape both = xla::ShapeUtil::MakeTupleShape({xla::ShapeUtil::MakeShape(xla::PRED, {}), number});
  return HeadOf(TypedCall(token.builder(), "ipu_fence", {token}, both, attributes));
}

// The values after an optimization barrier.
std::vector<xla::XlaOp> Barred(const std::vector<xla::XlaOp>& values) {
  const xla::XlaOp barred = xla::OptimizationBarrier(xla::Tuple(values.front().builder(), values));
  std::vector<xla::XlaOp> found;
  for (std::size_t i = 0; i < values.size(); ++i) {
    found.push_back(xla::GetTupleElement(barred, static_cast<int64_t>(i)));
  }
  return found;
}

// Adds a loop of one iteration. Custom calls decide whether it goes on: XLA would compile code for each loop that
// counts by its own operations.
absl::StatusOr<Carried> SingleLoop(const Carried& begin, const Iteration& iteration) {
  return Loop(Step(begin.token, "{goes = true}"), begin.values, iteration,
              [](xla::XlaBuilder*, xla::XlaOp token) { return Step(token, "{goes = false}"); });
}

// Adds a loop of one iteration if `runs`, else of none. It needs neither code nor a call.
absl::StatusOr<Carried> LoopIf(xla::XlaOp runs, const Carried& begin, const Iteration& iteration) {
  return Loop({runs, begin.token}, begin.values, iteration, [](xla::XlaBuilder* builder, xla::XlaOp token) {
    return Head{xla::ConstantR0<bool>(builder, false), token};
  });
}

// XLA moves no computation across it. TensorFlow lowers its own such op by way of MLIR, which takes a hundred times as
// long.
REGISTER_OP("IpuBarrier").Input("values: T").Output("barred: T").Attr("T: list(type) >= 1").SetShapeFn(ShapesOfInputs);

// What its values were computed from is no longer read where they are used. A loop of one iteration returns the values.
REGISTER_OP("IpuFence")
    .Input("token: int32")
    .Input("values: T")
    .Output("passed: int32")
    .Output("fenced: T")
    .Attr("T: list(type) >= 0")
    .SetShapeFn(ShapesOfInputs);

class BarrierXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<xla::XlaOp> values;
    for (int i = 0; i < context->num_inputs(); ++i) values.push_back(context->Input(i));
    const std::vector<xla::XlaOp> barred = Barred(values);
    for (int i = 0; i < context->num_outputs(); ++i) context->SetOutput(i, AtRunTime(context, barred[i]));
  }
};

class FenceXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    Carried begin{.token = context->Input(0), .values = {}};
    for (int i = 1; i < context->num_inputs(); ++i) begin.values.push_back(context->Input(i));
    const auto iteration = [](xla::XlaBuilder*, const Carried& carried) {
      std::vector<xla::XlaOp> all = {carried.token};
      all.insert(all.end(), carried.values.begin(), carried.values.end());
      // Without the barrier, XLA would find that the loop does not change the values.
      const std::vector<xla::XlaOp> barred = Barred(all);
      return Carried{.token = barred.front(), .values = {barred.begin() + 1, barred.end()}};
    };
    const absl::StatusOr<Carried> end = SingleLoop(begin, iteration);
    OP_REQUIRES_OK(context, end.status());
    context->SetOutput(0, end->token);
    for (int i = 1; i < context->num_outputs(); ++i) context->SetOutput(i, end->values[i - 1]);
  }
};

REGISTER_XLA_OP(Name("IpuBarrier"), BarrierXla);
REGISTER_XLA_OP(Name("IpuFence"), FenceXla);

// Runs a function once or skips it, as a loop of at most one iteration: the function updates in place, and nothing is
// moved across its ends. `tf.while_loop` would do the same, but takes 15 to 25 ms in Python, and some more in
// TensorFlow's bridge.
//
// The function takes `token`, `before` and `captured`, and returns new values for `before`. It runs if `runs`.
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
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i + 1));
      return absl::OkStatus();
    });

// The inputs of the op. The function's arguments begin with `token`.
constexpr int kRuns = 0;
constexpr int kToken = 1;
constexpr int kBefore = 2;

class OnceXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    const int captured = kBefore + context->num_outputs() - 1;
    std::vector<tf::XlaCompiler::Argument> arguments(context->num_inputs() - kToken);
    for (int i = kToken; i < context->num_inputs(); ++i) {
      OP_REQUIRES_OK(context, DescribeInput(context, i, &arguments[i - kToken]));
    }
    // Such as shapes.
    tf::ConvertCompileTimeConstArgumentsToConst(context, &arguments, /*xla_expression_offset=*/kToken,
                                                [context, captured](int argument) {
                                                  const int input = argument + kToken;
                                                  return input >= captured && IsConstant(context, input);
                                                });
    tf::XlaCompiler::CompileOptions options;
    options.is_entry_computation = false;
    options.always_return_tuple = true;
    tf::XlaCompiler::CompilationResult compiled;
    OP_REQUIRES_OK(context, context->compiler()->CompileFunction(options, function_, arguments, &compiled));

    // The loop carries what is changed and what is only used; `place` is the position of each input among them.
    std::vector<int> place(context->num_inputs(), kNowhere);
    std::vector<int> inputs;
    const auto carry = [&](int input) {
      if (place[input] != kNowhere) return;
      place[input] = static_cast<int>(inputs.size());
      inputs.push_back(input);
    };
    for (int input = kBefore; input < captured; ++input) carry(input);
    for (const int argument : compiled.input_mapping) {
      if (argument != 0) carry(argument + kToken);
    }
    Carried begin{.token = context->Input(kToken), .values = std::vector<xla::XlaOp>(inputs.size())};
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      OP_REQUIRES_OK(context, OperandOf(context, inputs[i], &begin.values[i]));
    }
    const auto iteration = [&](xla::XlaBuilder* builder, const Carried& carried) {
      // Without the barrier, XLA would hoist what is computed from these out of the loop.
      std::vector<xla::XlaOp> fixed = {carried.token};
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (IsFixed(context, inputs[i], captured)) fixed.push_back(carried.values[i]);
      }
      const std::vector<xla::XlaOp> barred = Barred(fixed);
      std::vector<xla::XlaOp> given = carried.values;
      std::size_t next = 1;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (IsFixed(context, inputs[i], captured)) given[i] = barred[next++];
      }
      std::vector<xla::XlaOp> operands;
      for (const int argument : compiled.input_mapping) {
        operands.push_back(argument == 0 ? barred.front() : given[place[argument + kToken]]);
      }
      const xla::XlaOp results = xla::Call(builder, *compiled.computation, operands);
      Carried changed{.token = barred.front(), .values = carried.values};
      int64_t result = 0;
      for (int i = kBefore; i < captured; ++i) {
        const tf::XlaOutputDescription& output = compiled.outputs[i - kBefore];
        changed.values[place[i]] =
            output.is_constant ? Constant(builder, output.constant_value) : xla::GetTupleElement(results, result++);
      }
      for (const tf::XlaResourceUpdate& update : compiled.resource_updates) {
        changed.values[place[update.input_index + kToken]] = xla::GetTupleElement(results, result++);
      }
      return changed;
    };
    const absl::StatusOr<Carried> end =
        IsConstant(context, kRuns) ? SingleLoop(begin, iteration) : LoopIf(context->Input(kRuns), begin, iteration);
    OP_REQUIRES_OK(context, end.status());
    context->SetOutput(0, end->token);
    for (int i = kBefore; i < captured; ++i) context->SetOutput(i - kToken, end->values[place[i]]);
    for (const tf::XlaResourceUpdate& update : compiled.resource_updates) {
      if (!update.modified) continue;
      const int input = update.input_index + kToken;
      tf::XlaResource* resource = nullptr;
      OP_REQUIRES_OK(context, context->GetResourceInput(input, &resource));
      OP_REQUIRES_OK(context, resource->SetFromPack(update.tensor_array_gradients_accessed, end->values[place[input]],
                                                    context->builder()));
      OP_REQUIRES_OK(context, MarkAssigned(resource));
    }
  }

 private:
  static constexpr int kNowhere = -1;

  // Whether an input is a tensor that the function does not change.
  static bool IsFixed(tf::XlaOpKernelContext* context, int input, int captured) {
    return input >= captured && context->input_type(input) != tf::DT_RESOURCE;
  }

  static xla::XlaOp Constant(xla::XlaBuilder* builder, const tf::Tensor& value) {
    xla::BorrowingLiteral literal;
    const absl::Status status = tf::HostTensorToBorrowingLiteral(value, &literal);
    return status.ok() ? xla::ConstantLiteral(builder, literal) : builder->ReportError(status);
  }

  const tf::NameAttrList function_ = tf::GetNodeAttr<tf::NameAttrList>(def(), "f").value();
};

REGISTER_XLA_OP(Name("IpuOnce").AllowResourceTypes().AllowVariantTypes(), OnceXla);

// Calls a function that is in the program once, however often it is called.
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

// The computations that were added to a builder, which would add one again at each call. It is a resource of the
// compilation of one graph, and so of one builder and one thread.
class AddedComputations : public tf::ResourceBase {
 public:
  std::string DebugString() const override { return "the outlined functions of a computation"; }

  xla::XlaComputationId IdOf(xla::XlaBuilder* builder, const std::shared_ptr<xla::XlaComputation>& computation) {
    const auto found = added_.find(computation.get());
    if (found != added_.end()) return found->second.second;
    const xla::XlaComputationId id = builder->AddSubComputation(*computation);
    added_.emplace(computation.get(), std::make_pair(computation, id));
    return id;
  }

 private:
  // Keeps each computation, so that no other one gets its address.
  std::map<const xla::XlaComputation*, std::pair<std::shared_ptr<xla::XlaComputation>, xla::XlaComputationId>> added_;
};

class OutlinedXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<tf::XlaCompiler::Argument> arguments(context->num_inputs());
    for (int i = 0; i < context->num_inputs(); ++i) {
      OP_REQUIRES_OK(context, DescribeInput(context, i, &arguments[i]));
    }
    // Such as shapes: a call with others becomes a computation of its own.
    tf::ConvertCompileTimeConstArgumentsToConst(context, &arguments, /*xla_expression_offset=*/0,
                                                [&](int i) { return IsConstant(context, i); });
    tf::XlaCompiler::CompileOptions options;
    options.is_entry_computation = false;
    // Cached by the compiler for functions that it has compiled for such arguments before.
    tf::XlaCompiler::CompilationResult compiled;
    OP_REQUIRES_OK(context, context->compiler()->CompileFunction(options, function_, arguments, &compiled));
    std::vector<xla::XlaOp> operands;
    for (const int i : compiled.input_mapping) {
      operands.emplace_back();
      OP_REQUIRES_OK(context, OperandOf(context, i, &operands.back()));
    }
    tf::OpKernelContext* const compilation = context->op_kernel_context();
    AddedComputations* added = nullptr;
    OP_REQUIRES_OK(context,
                   compilation->step_container()->LookupOrCreate<AddedComputations>(
                       compilation->resource_manager(), "ipu_outlined", &added, MakeResource<AddedComputations>));
    const tf::core::ScopedUnref owned(added);
    const xla::XlaComputationId id = added->IdOf(context->builder(), compiled.computation);
    const xla::XlaOp results = xla::Call(context->builder(), id, operands);
    int place = 0;
    for (std::size_t i = 0; i < compiled.outputs.size(); ++i) {
      const tf::XlaOutputDescription& output = compiled.outputs[i];
      if (output.is_constant) {
        context->SetConstantOutput(static_cast<int>(i), output.constant_value);
      } else if (output.is_tensor_list) {
        context->SetTensorListOutput(static_cast<int>(i), xla::GetTupleElement(results, place++));
      } else {
        // XLA's search for values at compile time ends the process at an element of what a call returns.
        context->SetOutput(static_cast<int>(i), ResultOf(context, results, place++));
      }
    }
    for (const tf::XlaResourceUpdate& update : compiled.resource_updates) {
      tf::XlaResource* resource = nullptr;
      OP_REQUIRES_OK(context, context->GetResourceInput(update.input_index, &resource));
      const xla::XlaOp value = xla::GetTupleElement(results, place++);
      if (update.modified) {
        OP_REQUIRES_OK(context,
                       resource->SetFromPack(update.tensor_array_gradients_accessed, value, context->builder()));
        OP_REQUIRES_OK(context, MarkAssigned(resource));
      }
    }
  }

 private:
  const tf::NameAttrList function_ = tf::GetNodeAttr<tf::NameAttrList>(def(), "f").value();
};

REGISTER_XLA_OP(Name("IpuOutlined").AllowResourceTypes().AllowVariantTypes(), OutlinedXla);

// A loop or a branch of TensorFlow, after which the variables that it assigns are marked.
class AssigningXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<std::pair<tf::XlaResource*, xla::XlaOp>> before;
    for (int i = 0; i < context->num_inputs(); ++i) {
      if (context->input_type(i) != tf::DT_RESOURCE) continue;
      tf::XlaResource* resource = nullptr;
      OP_REQUIRES_OK(context, context->GetResourceInput(i, &resource));
      before.emplace_back(resource, resource->value());
    }
    LowerAsXla(context);
    for (const auto& [resource, value] : before) {
      const bool assigned = resource->value().valid() && !resource->value().IsIdenticalTo(value);
      if (assigned) OP_REQUIRES_OK(context, MarkAssigned(resource));
    }
  }
};

const bool assigning_registered = RegisterProgramKernel<AssigningXla>("Case") &&
                                  RegisterProgramKernel<AssigningXla>("If") &&
                                  RegisterProgramKernel<AssigningXla>("While");

}  // namespace
}  // namespace tensorflow_ipu
