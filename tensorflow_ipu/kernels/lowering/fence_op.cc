// `IpuFence`: what its values were computed from is not read any more where they are used. `IpuBarrier`: no computation
// is moved past it.
//
// A fence is a loop of one iteration, of which XLA does not know that it has just one: custom calls say whether it goes
// on. Nothing moves across its ends, and XLA does not begin what comes behind it before all that goes into it is there.
// Counting by XLA's own operations would do as well, but it compiles each such loop to code of its own. A custom call
// that returns the values in their memory would not: ahead of it, XLA copies what an elementwise operation has made.
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
#include "xla/hlo/builder/xla_builder.h"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/shape.h"
#include "xla/shape_util.h"

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

// What the loop carries: whether it goes on, `behind`, the values.
constexpr int64_t kGoes = 0;
constexpr int64_t kBehind = 1;

// `behind` again, and whether the loop goes on: as `attributes` says, which XLA does not read.
xla::XlaOp Step(xla::XlaBuilder* builder, xla::XlaOp behind, const char* attributes) {
  const xla::Shape number = xla::ShapeUtil::MakeShape(xla::S32, {});
  const xla::Shape both = xla::ShapeUtil::MakeTupleShape({xla::ShapeUtil::MakeShape(xla::PRED, {}), number});
  return xla::CustomCallWithLayout(builder, "ipu_fence", {behind}, both, {number}, attributes,
                                   /*has_side_effect=*/false, /*output_operand_aliasing=*/{}, /*literal=*/nullptr,
                                   xla::CustomCallSchedule::SCHEDULE_NONE,
                                   xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
}

absl::StatusOr<xla::XlaComputation> Condition(xla::XlaBuilder* parent, const xla::Shape& carried) {
  const std::unique_ptr<xla::XlaBuilder> builder = parent->CreateSubBuilder("fence_condition");
  return builder->Build(xla::GetTupleElement(xla::Parameter(builder.get(), 0, carried, "carried"), kGoes));
}

absl::StatusOr<xla::XlaComputation> Body(xla::XlaBuilder* parent, const xla::Shape& carried) {
  const std::unique_ptr<xla::XlaBuilder> builder = parent->CreateSubBuilder("fence");
  const xla::XlaOp all = xla::Parameter(builder.get(), 0, carried, "carried");
  std::vector<xla::XlaOp> values;
  for (std::size_t i = kBehind; i < carried.tuple_shapes().size(); ++i) {
    values.push_back(xla::GetTupleElement(all, static_cast<int64_t>(i)));
  }
  // Else XLA would find that the loop leaves the values as they are.
  const xla::XlaOp barred = xla::OptimizationBarrier(xla::Tuple(builder.get(), values));
  const xla::XlaOp step = Step(builder.get(), xla::GetTupleElement(barred, 0), "{goes = false}");
  std::vector<xla::XlaOp> next = {xla::GetTupleElement(step, kGoes), xla::GetTupleElement(step, kBehind)};
  for (std::size_t i = 1; i < values.size(); ++i) {
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
    const xla::XlaOp begin = Step(builder, context->Input(0), "{goes = true}");
    std::vector<xla::XlaOp> initial = {xla::GetTupleElement(begin, kGoes), xla::GetTupleElement(begin, kBehind)};
    for (int i = 1; i < context->num_inputs(); ++i) initial.push_back(context->Input(i));
    const xla::XlaOp carried = xla::Tuple(builder, initial);
    const absl::StatusOr<xla::Shape> shape = builder->GetShape(carried);
    OP_REQUIRES_OK(context, shape.status());
    const absl::StatusOr<xla::XlaComputation> condition = Condition(builder, *shape);
    OP_REQUIRES_OK(context, condition.status());
    const absl::StatusOr<xla::XlaComputation> body = Body(builder, *shape);
    OP_REQUIRES_OK(context, body.status());
    const xla::XlaOp done = xla::While(*condition, *body, carried);
    for (int i = 0; i < context->num_outputs(); ++i) context->SetOutput(i, xla::GetTupleElement(done, kBehind + i));
  }
};

REGISTER_XLA_OP(Name("IpuBarrier"), BarrierXla);
REGISTER_XLA_OP(Name("IpuFence"), FenceXla);

}  // namespace
}  // namespace tensorflow_ipu
