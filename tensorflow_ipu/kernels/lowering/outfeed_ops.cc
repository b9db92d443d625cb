#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// `layout` numbers the structure, types and shapes of the element for the host. With `synthetic`, the program declares
// the layout and enqueues nothing.
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
    OP_REQUIRES_OK(construction, construction->GetAttr("synthetic", &synthetic_));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<xla::XlaOp> element = ValuesOf(context);
    for (const xla::XlaOp& value : element) {
      const absl::StatusOr<xla::Shape> shape = context->builder()->GetShape(value);
      OP_REQUIRES_OK(context, shape.status());
      OP_REQUIRES_OK(context, RefuseEmpty("outfeed", *shape));
    }
    if (synthetic_) element.clear();
    CallWithState(context, "ipu_outfeed_enqueue", element, /*results=*/{},
                  "{layout = " + std::to_string(layout_) + " : i64}");
  }

 private:
  int64_t layout_;
  bool synthetic_;
};

REGISTER_XLA_OP(Name("IpuOutfeedEnqueue"), OutfeedEnqueueXla);

}  // namespace
}  // namespace tensorflow_ipu
