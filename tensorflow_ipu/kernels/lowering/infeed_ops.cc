#include <string>
#include <vector>

#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

REGISTER_OP("IpuInfeedDequeue")
    .Input("state: resource")
    .ORDER_INPUT.Output("element: types")
    .Attr("types: list(type) >= 1")
    .Attr("shapes: list(shape) >= 1")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      std::vector<tf::TensorShape> shapes;
      TF_RETURN_IF_ERROR(c->GetAttr("shapes", &shapes));
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        tf::shape_inference::ShapeHandle shape;
        TF_RETURN_IF_ERROR(c->MakeShapeFromTensorShape(shapes[i], &shape));
        c->set_output(static_cast<int>(i), shape);
      }
      return absl::OkStatus();
    });

namespace {

class InfeedDequeueXla : public tf::XlaOpKernel {
 public:
  explicit InfeedDequeueXla(tf::OpKernelConstruction* construction) : XlaOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("types", &types_));
    OP_REQUIRES_OK(construction, construction->GetAttr("shapes", &shapes_));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<xla::Shape> results(types_.size());
    for (std::size_t i = 0; i < types_.size(); ++i) {
      OP_REQUIRES_OK(context, tf::TensorShapeToXLAShape(types_[i], shapes_[i], &results[i]));
      OP_REQUIRES_OK(context, RefuseEmpty("infeed", results[i]));
    }
    const std::vector<xla::XlaOp> element =
        CallWithState(context, "ipu_infeed_dequeue", {}, results, /*attributes=*/"");
    for (std::size_t i = 0; i < element.size(); ++i) context->SetOutput(static_cast<int>(i), element[i]);
  }

 private:
  tf::DataTypeVector types_;
  std::vector<tf::TensorShape> shapes_;
};

REGISTER_XLA_OP(Name("IpuInfeedDequeue").IsMetadataOp(), InfeedDequeueXla);

}  // namespace
}  // namespace tensorflow_ipu
