// `IpuFence`: a memory fence: what its values were computed from is no longer read where they are used. `IpuBarrier`:
// XLA moves no computation across it. A fence is a loop of one iteration that returns its values (`single_loop.h`).
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/lowering/single_loop.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// TensorFlow lowers its own such op by way of MLIR, which takes a hundred times as long.
REGISTER_OP("IpuBarrier")
    .Input("values: T")
    .Output("barred: T")
    .Attr("T: list(type) >= 1")
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    });

REGISTER_OP("IpuFence")
    .Input("behind: int32")
    .Input("values: T")
    .Output("passed: int32")
    .Output("fenced: T")
    .Attr("T: list(type) >= 0")
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    });

namespace {

class BarrierXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<xla::XlaOp> values;
    for (int i = 0; i < context->num_inputs(); ++i) values.push_back(context->Input(i));
    const std::vector<xla::XlaOp> barred = Barred(values);
    for (int i = 0; i < context->num_outputs(); ++i) context->SetOutput(i, barred[i]);
  }
};

class FenceXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    Carried begin{.behind = context->Input(0), .values = {}};
    for (int i = 1; i < context->num_inputs(); ++i) begin.values.push_back(context->Input(i));
    const auto iteration = [](xla::XlaBuilder*, const Carried& carried) {
      std::vector<xla::XlaOp> all = {carried.behind};
      all.insert(all.end(), carried.values.begin(), carried.values.end());
      // Without the barrier, XLA would find that the loop does not change the values.
      const std::vector<xla::XlaOp> barred = Barred(all);
      return Carried{.behind = barred.front(), .values = {barred.begin() + 1, barred.end()}};
    };
    const absl::StatusOr<Carried> end = SingleLoop(begin, iteration);
    OP_REQUIRES_OK(context, end.status());
    context->SetOutput(0, end->behind);
    for (int i = 1; i < context->num_outputs(); ++i) context->SetOutput(i, end->values[i - 1]);
  }
};

REGISTER_XLA_OP(Name("IpuBarrier"), BarrierXla);
REGISTER_XLA_OP(Name("IpuFence"), FenceXla);

}  // namespace
}  // namespace tensorflow_ipu
