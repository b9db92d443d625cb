// `IpuOutfeedEnqueue`: hands an element to an outfeed inside a compiled program.
#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/ops/lowering.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// `layout` numbers the structure, types and shapes of the element; the host finds them by it. With `synthetic`, the
// program says so much and hands nothing over.
REGISTER_OP("IpuOutfeedEnqueue")
    .Input("state: resource")
    .Input("element: types")
    .ORDER_INPUT.Attr("types: list(type) >= 1")
    .Attr("layout: int")
    .Attr("synthetic: bool = false")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext*) { return absl::OkStatus(); });

namespace {

class OutfeedEnqueueXla : public tf::XlaOpKernel {
 public:
  explicit OutfeedEnqueueXla(tf::OpKernelConstruction* construction) : XlaOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("layout", &layout_));
    OP_REQUIRES_OK(construction, construction->GetAttr("orders", &orders_));
    OP_REQUIRES_OK(construction, construction->GetAttr("synthetic", &synthetic_));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<xla::XlaOp> element;
    for (int i = 1; i < context->num_inputs() - orders_; ++i) {
      const absl::StatusOr<xla::Shape> shape = context->InputXlaShape(i);
      OP_REQUIRES_OK(context, shape.status());
      OP_REQUIRES_OK(context, RefuseEmpty("outfeed", *shape));
      if (!synthetic_) element.push_back(context->Input(i));
    }
    CallOnFeed(context, "ipu_outfeed_enqueue", element, /*results=*/{},
               "{layout = " + std::to_string(layout_) + " : i64}");
  }

 private:
  int64_t layout_;
  int orders_;
  bool synthetic_;
};

REGISTER_XLA_OP(Name("IpuOutfeedEnqueue"), OutfeedEnqueueXla);

}  // namespace
}  // namespace tensorflow_ipu
