// `IpuJoinOrders`: where orders that do not know of each other begin and end as one.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow_ipu/kernels/core/program_state.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "xla/hlo/builder/lib/constants.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// What uses any of the states after this op comes after all that used any of them before.
REGISTER_OP("IpuJoinOrders")
    .Input("states: N * resource")
    .Attr("N: int >= 1")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

namespace {

class JoinOrdersXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  // Adds to each state what is zero, as XLA cannot know: the sign of all counts.
  void Compile(tf::XlaOpKernelContext* context) override {
    constexpr int64_t kCount = offsetof(core::ProgramState, count) / sizeof(int64_t);
    std::vector<xla::XlaOp> states(context->num_inputs());
    xla::XlaOp zero;
    for (int i = 0; i < context->num_inputs(); ++i) {
      tf::TensorShape shape;
      OP_REQUIRES_OK(context, context->ReadVariableInput(i, tf::DT_INT64, &shape, &states[i]));
      const xla::XlaOp count = xla::Reshape(xla::Slice(states[i], {kCount}, {kCount + 1}, {1}), {});
      const xla::XlaOp sign = xla::ShiftRightLogical(count, xla::ConstantR0<int64_t>(context->builder(), 63));
      zero = i == 0 ? sign : xla::Or(zero, sign);
    }
    for (int i = 0; i < context->num_inputs(); ++i) {
      OP_REQUIRES_OK(context, context->AssignVariable(i, tf::DT_INT64, xla::Add(states[i], zero)));
    }
  }
};

REGISTER_XLA_OP(Name("IpuJoinOrders").IsMetadataOp(), JoinOrdersXla);

}  // namespace
}  // namespace tensorflow_ipu
