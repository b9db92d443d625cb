#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "tensorflow_ipu/kernels/lowering/host_kernel.h"
#include "tensorflow_ipu/kernels/lowering/stated_shapes.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

REGISTER_OP("IpuUserOperation")
    .Input("state: resource")
    .Input("inputs: input_types")
    .ORDER_INPUT.Output("outputs: output_types")
    .Attr("input_types: list(type) >= 0")
    .Attr("output_types: list(type) >= 0")
    .Attr("output_shapes: list(shape) >= 0")
    .Attr("attributes: string = ''")
    .Attr("called: string")
    .Attr("advance: bool = true")
    .SetIsStateful()
    .SetShapeFn(StatedShapes);

namespace {

class UserOperationXla : public tf::XlaOpKernel {
 public:
  explicit UserOperationXla(tf::OpKernelConstruction* construction) : XlaOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("advance", &options_.advance));
    OP_REQUIRES_OK(construction, construction->GetAttr("attributes", &attributes_));
    OP_REQUIRES_OK(construction, construction->GetAttr("called", &called_));
    OP_REQUIRES_OK(construction, construction->GetAttr("output_shapes", &shapes_));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<xla::Shape> results(context->num_outputs());
    for (int i = 0; i < context->num_outputs(); ++i) {
      tf::TensorShape shape;
      OP_REQUIRES(context, shapes_[i].AsTensorShape(&shape),
                  absl::InvalidArgumentError(absl::StrCat(
                      NameForMessages(context, called_), ": `outs` says the shape ", shapes_[i].DebugString(),
                      ", and a program has static shapes: trace its function for arguments of static shape")));
      OP_REQUIRES_OK(context, tf::TensorShapeToXLAShape(context->expected_output_dtype(i), shape, &results[i]));
    }
    const std::vector<xla::XlaOp> outputs = CallWithState(
        context, "ipu_user_operation", ValuesOf(context), results,
        absl::StrCat("{attributes = ", QuotedAttribute(attributes_), ", called = ", QuotedAttribute(called_),
                     ", name = ", QuotedAttribute(NameForMessages(context, called_)), "}"),
        options_);
    for (std::size_t i = 0; i < outputs.size(); ++i) context->SetOutput(static_cast<int>(i), outputs[i]);
  }

 private:
  CallOptions options_;
  std::string attributes_;
  std::string called_;
  std::vector<tf::PartialTensorShape> shapes_;  // Unknown where Keras traces a layer that is never compiled.
};

REGISTER_XLA_OP(Name("IpuUserOperation").IsMetadataOp(), UserOperationXla);

}  // namespace
}  // namespace tensorflow_ipu
