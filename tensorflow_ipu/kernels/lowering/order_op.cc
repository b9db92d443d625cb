#include <cstdint>
#include <utility>
#include <vector>

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// Joins orders that do not know of each other: any use of the states after this op comes after all uses before it.
REGISTER_OP("IpuJoinOrders")
    .Input("states: N * resource")
    .Attr("N: int >= 1")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

namespace {

class JoinOrdersXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  // A custom call returns each state as it is. Operations of XLA would be compiled for each such op.
  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<xla::XlaOp> states(context->num_inputs());
    std::vector<xla::Shape> shapes;
    std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>> in_place;
    for (int i = 0; i < context->num_inputs(); ++i) {
      tf::TensorShape shape;
      OP_REQUIRES_OK(context, context->ReadVariableInput(i, tf::DT_INT64, &shape, &states[i]));
      shapes.push_back(xla::ShapeUtil::MakeShape(xla::S64, shape.dim_sizes()));
      in_place.push_back({{i}, {i, {}}});
    }
    const xla::XlaOp joined = xla::CustomCallWithLayout(
        context->builder(), "ipu_join_orders", states, xla::ShapeUtil::MakeTupleShape(shapes), shapes, /*opaque=*/"",
        /*has_side_effect=*/false, in_place, /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
        xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
    for (int i = 0; i < context->num_inputs(); ++i) {
      OP_REQUIRES_OK(context, context->AssignVariable(i, tf::DT_INT64, xla::GetTupleElement(joined, i)));
    }
  }
};

REGISTER_XLA_OP(Name("IpuJoinOrders").IsMetadataOp(), JoinOrdersXla);

}  // namespace
}  // namespace tensorflow_ipu
