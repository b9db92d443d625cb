#include "tensorflow_ipu/kernels/lowering/called_function.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/compiler/tf2xla/xla_compiler.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_resource.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

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
  const absl::StatusOr<xla::Shape> shape = context->builder()->GetShape(context->Input(input));
  TF_RETURN_IF_ERROR(shape.status());
  argument->shape = *shape;
  return absl::OkStatus();
}

absl::Status OperandOf(tf::XlaOpKernelContext* context, int input, xla::XlaOp* operand) {
  if (context->input_type(input) != tf::DT_RESOURCE) {
    *operand = context->Input(input);
    return absl::OkStatus();
  }
  tf::XlaResource* resource = nullptr;
  TF_RETURN_IF_ERROR(context->GetResourceInput(input, &resource));
  return resource->Pack(operand, context->builder());
}

}  // namespace tensorflow_ipu
