#include <vector>

#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// Draws a new seed at each use, for TensorFlow's stateless random ops. `advance` is false in the condition of a loop,
// where XLA allows no assignment and the loop keeps the order.
REGISTER_OP("IpuRandomSeed")
    .Input("state: resource")
    .Output("seed: int64")
    .Attr("advance: bool = true")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Vector(2));
      return absl::OkStatus();
    });

// The number of the replica's random stream.
REGISTER_OP("IpuRandomStream")
    .Input("state: resource")
    .Output("stream: int64")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

namespace {

class RandomSeedXla : public tf::XlaOpKernel {
 public:
  explicit RandomSeedXla(tf::OpKernelConstruction* construction) : XlaOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("advance", &options_.advance));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    const std::vector<xla::XlaOp> drawn =
        CallWithState(context, "ipu_random_seed", {}, {xla::ShapeUtil::MakeShape(xla::S64, {2})}, "{}", options_);
    if (!drawn.empty()) context->SetOutput(0, drawn[0]);
  }

 private:
  CallOptions options_;
};

class RandomStreamXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    const std::vector<xla::XlaOp> told = CallWithState(
        context, "ipu_random_stream", {}, {xla::ShapeUtil::MakeShape(xla::S64, {})}, "{}", {false, /*advance=*/false});
    if (!told.empty()) context->SetOutput(0, told[0]);
  }
};

REGISTER_XLA_OP(Name("IpuRandomSeed").IsMetadataOp(), RandomSeedXla);
REGISTER_XLA_OP(Name("IpuRandomStream").IsMetadataOp(), RandomStreamXla);

}  // namespace
}  // namespace tensorflow_ipu
