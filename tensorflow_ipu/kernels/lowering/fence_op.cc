// `IpuFence`: what its values were computed from is not read any more where they are used. `IpuBarrier`: no computation
// is moved past it.
//
// A fence is a loop of one iteration, of which XLA does not know that it has just one: `behind` and `zero` are 0, which
// the run alone knows. Nothing moves across its ends, and XLA does not begin what comes behind it before all that goes
// into it is there.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/shape.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// TensorFlow's op of this kind is lowered by a compiler of its own, which takes a hundred times as long as this.
REGISTER_OP("IpuBarrier")
    .Input("values: T")
    .Output("barred: T")
    .Attr("T: list(type) >= 1")
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    });

REGISTER_OP("IpuFence")
    .Input("zero: int32")
    .Input("behind: int32")
    .Input("values: T")
    .Output("passed: int32")
    .Output("fenced: T")
    .Attr("T: list(type) >= 0")
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i + 1));
      return absl::OkStatus();
    });

namespace {

// What the loop carries: `zero`, a count, the values.
constexpr int64_t kZero = 0;
constexpr int64_t kCount = 1;

absl::StatusOr<xla::XlaComputation> Condition(xla::XlaBuilder* parent, const xla::Shape& carried) {
  const std::unique_ptr<xla::XlaBuilder> builder = parent->CreateSubBuilder("fence_condition");
  const xla::XlaOp all = xla::Parameter(builder.get(), 0, carried, "carried");
  return builder->Build(xla::Le(xla::GetTupleElement(all, kCount), xla::GetTupleElement(all, kZero)));
}

absl::StatusOr<xla::XlaComputation> Body(xla::XlaBuilder* parent, const xla::Shape& carried) {
  const std::unique_ptr<xla::XlaBuilder> builder = parent->CreateSubBuilder("fence");
  const xla::XlaOp all = xla::Parameter(builder.get(), 0, carried, "carried");
  std::vector<xla::XlaOp> counted;
  for (std::size_t i = kCount; i < carried.tuple_shapes().size(); ++i) {
    counted.push_back(xla::GetTupleElement(all, static_cast<int64_t>(i)));
  }
  const xla::XlaOp barred = xla::OptimizationBarrier(xla::Tuple(builder.get(), counted));
  std::vector<xla::XlaOp> next = {xla::GetTupleElement(all, kZero),
                                  xla::Add(xla::GetTupleElement(barred, 0), xla::One(builder.get(), xla::S32))};
  for (std::size_t i = 1; i < counted.size(); ++i) {
    next.push_back(xla::GetTupleElement(barred, static_cast<int64_t>(i)));
  }
  return builder->Build(xla::Tuple(builder.get(), next));
}

class BarrierXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<xla::XlaOp> values;
    for (int i = 0; i < context->num_inputs(); ++i) values.push_back(context->Input(i));
    const xla::XlaOp barred = xla::OptimizationBarrier(xla::Tuple(context->builder(), values));
    for (int i = 0; i < context->num_outputs(); ++i) context->SetOutput(i, xla::GetTupleElement(barred, i));
  }
};

class FenceXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    xla::XlaBuilder* const builder = context->builder();
    std::vector<xla::XlaOp> initial;
    for (int i = 0; i < context->num_inputs(); ++i) initial.push_back(context->Input(i));
    const xla::XlaOp carried = xla::Tuple(builder, initial);
    const absl::StatusOr<xla::Shape> shape = builder->GetShape(carried);
    OP_REQUIRES_OK(context, shape.status());
    const absl::StatusOr<xla::XlaComputation> condition = Condition(builder, *shape);
    OP_REQUIRES_OK(context, condition.status());
    const absl::StatusOr<xla::XlaComputation> body = Body(builder, *shape);
    OP_REQUIRES_OK(context, body.status());
    const xla::XlaOp done = xla::While(*condition, *body, carried);
    context->SetOutput(0, xla::Sub(xla::GetTupleElement(done, kCount), xla::One(builder, xla::S32)));
    for (int i = 1; i < context->num_outputs(); ++i) context->SetOutput(i, xla::GetTupleElement(done, kCount + i));
  }
};

REGISTER_XLA_OP(Name("IpuBarrier"), BarrierXla);
REGISTER_XLA_OP(Name("IpuFence"), FenceXla);

}  // namespace
}  // namespace tensorflow_ipu
