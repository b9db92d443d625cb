// `IpuOnce` runs a function once or skips it, as a loop of at most one iteration (`single_loop.h`): the function
// updates in place, and nothing is moved across its ends. `tf.while_loop` would do the same, but takes 15 to 25 ms in
// Python, and some more in TensorFlow's bridge.
#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/compiler/tf2xla/kernels/if_while_utils.h"
#include "tensorflow/compiler/tf2xla/literal_util.h"
#include "tensorflow/compiler/tf2xla/xla_compiler.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/compiler/tf2xla/xla_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/lowering/called_function.h"
#include "tensorflow_ipu/kernels/lowering/single_loop.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/literal.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// The function takes `behind`, `before` and `captured`, and returns new values for `before`. It runs if `runs`.
// `passed` equals `behind`, and is available once the function has run.
REGISTER_OP("IpuOnce")
    .Input("runs: bool")
    .Input("behind: int32")
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

namespace {

// The inputs of the op. The function's arguments begin with `behind`.
constexpr int kRuns = 0;
constexpr int kBehind = 1;
constexpr int kBefore = 2;

class OnceXla : public tf::XlaOpKernel {
 public:
  explicit OnceXla(tf::OpKernelConstruction* construction) : XlaOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("f", &function_));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    const int captured = kBefore + context->num_outputs() - 1;
    std::vector<tf::XlaCompiler::Argument> arguments(context->num_inputs() - kBehind);
    for (int i = kBehind; i < context->num_inputs(); ++i) {
      OP_REQUIRES_OK(context, DescribeInput(context, i, &arguments[i - kBehind]));
    }
    // Such as shapes.
    tf::ConvertCompileTimeConstArgumentsToConst(
        context, &arguments, /*xla_expression_offset=*/kBehind, [context, captured](int argument) {
          const int input = argument + kBehind;
          return input >= captured && context->InputExpression(input).kind() == tf::XlaExpression::Kind::kConstant;
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
      if (argument != 0) carry(argument + kBehind);
    }
    Carried begin{.behind = context->Input(kBehind), .values = std::vector<xla::XlaOp>(inputs.size())};
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      OP_REQUIRES_OK(context, OperandOf(context, inputs[i], &begin.values[i]));
    }
    const auto iteration = [&](xla::XlaBuilder* builder, const Carried& carried) {
      // Without the barrier, XLA would hoist what is computed from these out of the loop.
      std::vector<xla::XlaOp> fixed = {carried.behind};
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
        operands.push_back(argument == 0 ? barred.front() : given[place[argument + kBehind]]);
      }
      const xla::XlaOp results = xla::Call(builder, *compiled.computation, operands);
      Carried changed{.behind = barred.front(), .values = carried.values};
      int64_t result = 0;
      for (int i = kBefore; i < captured; ++i) {
        const tf::XlaOutputDescription& output = compiled.outputs[i - kBefore];
        changed.values[place[i]] =
            output.is_constant ? Constant(builder, output.constant_value) : xla::GetTupleElement(results, result++);
      }
      for (const tf::XlaResourceUpdate& update : compiled.resource_updates) {
        changed.values[place[update.input_index + kBehind]] = xla::GetTupleElement(results, result++);
      }
      return changed;
    };
    const absl::StatusOr<Carried> end =
        IsKnown(context, kRuns) ? SingleLoop(begin, iteration) : LoopIf(context->Input(kRuns), begin, iteration);
    OP_REQUIRES_OK(context, end.status());
    context->SetOutput(0, end->behind);
    for (int i = kBefore; i < captured; ++i) context->SetOutput(i - kBehind, end->values[place[i]]);
    for (const tf::XlaResourceUpdate& update : compiled.resource_updates) {
      if (!update.modified) continue;
      const int input = update.input_index + kBehind;
      tf::XlaResource* resource = nullptr;
      OP_REQUIRES_OK(context, context->GetResourceInput(input, &resource));
      OP_REQUIRES_OK(context, resource->SetFromPack(update.tensor_array_gradients_accessed, end->values[place[input]],
                                                    context->builder()));
    }
  }

 private:
  static constexpr int kNowhere = -1;

  static bool IsKnown(tf::XlaOpKernelContext* context, int input) {
    return context->InputExpression(input).kind() == tf::XlaExpression::Kind::kConstant;
  }

  // Whether an input is a tensor that the function does not change.
  static bool IsFixed(tf::XlaOpKernelContext* context, int input, int captured) {
    return input >= captured && context->input_type(input) != tf::DT_RESOURCE;
  }

  static xla::XlaOp Constant(xla::XlaBuilder* builder, const tf::Tensor& value) {
    xla::BorrowingLiteral literal;
    const absl::Status status = tf::HostTensorToBorrowingLiteral(value, &literal);
    return status.ok() ? xla::ConstantLiteral(builder, literal) : builder->ReportError(status);
  }

  tf::NameAttrList function_;
};

REGISTER_XLA_OP(Name("IpuOnce").AllowResourceTypes().AllowVariantTypes(), OnceXla);

}  // namespace
}  // namespace tensorflow_ipu
