// Ops of programs that call functions of the host. `IpuHostFunction` creates a host function, `IpuHostCall` calls it,
// and `IpuHostResult` is one of its results. `IpuUserOperation` calls a user's C++ function.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/host/function.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "tensorflow_ipu/kernels/lowering/host_kernel.h"
#include "tensorflow_ipu/kernels/support/program_state.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

// Sets the body of host function `number`. If `number` is 0, creates a function for programs on `/device:IPU:<device>`
// that lives as long as the session. Runs on the host. `initial` is the initial state that identifies the function in a
// program.
REGISTER_OP("IpuHostFunction")
    .Input("number: int64")
    .Input("bound: types")
    .Output("initial: int64")
    .Attr("types: list(type) >= 0")
    .Attr("f: func")
    .Attr("device: int")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Vector(core::kProgramStateSize));
      return absl::OkStatus();
    });

// `call` represents the results of all types and shapes in `result_types` and `result_shapes`. These lists grow while
// the program is traced, whenever a result is first used. So the results cannot be outputs of this op.
REGISTER_OP("IpuHostCall")
    .Input("state: resource")
    .Input("passed: types")
    .ORDER_INPUT.Output("call: variant")
    .Attr("types: list(type) >= 0")
    .Attr("result_types: list(type) >= 0 = []")
    .Attr("result_shapes: list(shape) >= 0 = []")
    .Attr("advance: bool = true")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

// `passed` are the inputs of the call, which receive gradients.
REGISTER_OP("IpuHostResult")
    .Input("call: variant")
    .Input("passed: types")
    .Output("result: dtype")
    .Attr("types: list(type) >= 0")
    .Attr("index: int >= 0")
    .Attr("dtype: type")
    .Attr("shape: shape")
    .SetShapeFn(tf::shape_inference::ExplicitShape);

class HostFunctionOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;
  ~HostFunctionOp() override {
    if (own_ > 0) HostFunctions().Remove(own_);
  }

  void Compute(tf::OpKernelContext* context) override {
    int64_t number = context->input(0).scalar<int64_t>()();
    {
      const absl::MutexLock lock(&mutex_);
      if (number > 0 || own_ == 0) {
        std::vector<tf::Tensor> bound;
        for (int i = 1; i < context->num_inputs(); ++i) bound.push_back(context->input(i));
        const absl::StatusOr<std::shared_ptr<HostBody>> body = HostBody::Make(context, function_, std::move(bound));
        OP_REQUIRES_OK(context, body.status());
        std::shared_ptr<HostFunction> function = HostFunctions().Find(number);
        if (number == 0) {
          function = std::make_shared<HostFunction>(device_);
          own_ = HostFunctions().Add(function);
        }
        if (function != nullptr) function->SetBody(*body);  // If it is null, the program was deleted in the meantime.
      }
      if (number == 0) number = own_;
    }
    tf::Tensor* initial = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({core::kProgramStateSize}), &initial));
    const core::ProgramState state{number, /*replica=*/0, /*replicas=*/1, /*count=*/0};
    std::memcpy(initial->data(), &state, sizeof(state));
  }

 private:
  const tf::NameAttrList function_ = tf::GetNodeAttr<tf::NameAttrList>(def(), "f").value();
  const int64_t device_ = tf::GetNodeAttr<int64_t>(def(), "device").value();
  absl::Mutex mutex_;
  int64_t own_ ABSL_GUARDED_BY(mutex_) = 0;
};

REGISTER_KERNEL_BUILDER(Name("IpuHostFunction").Device(tf::DEVICE_CPU), HostFunctionOp);

absl::Status LowerHostCall(tf::XlaOpKernelContext* context) {
  const auto types = AttributeOf<std::vector<tf::DataType>>(context, "result_types");
  const auto shapes = AttributeOf<std::vector<tf::TensorShape>>(context, "result_shapes");
  std::vector<xla::Shape> results(types.size());
  for (std::size_t i = 0; i < types.size(); ++i) {
    TF_RETURN_IF_ERROR(tf::TensorShapeToXLAShape(types[i], shapes[i], &results[i]));
  }
  const std::string node = TextOf(context->op_kernel().def());
  const std::string attributes = CallAttributes({{"node", node}, {"name", NameForMessages(context, node)}});
  TF_ASSIGN_OR_RETURN(const std::vector<xla::XlaOp> results_of_call,
                      CallWithState(context, "ipu_host_call", ValuesOf(context), results, attributes));
  context->SetTensorListOutput(0, xla::Tuple(context->builder(), results_of_call));
  return absl::OkStatus();
}

absl::Status LowerHostResult(tf::XlaOpKernelContext* context) {
  context->SetOutput(0, xla::GetTupleElement(context->Input(0), AttributeOf<int64_t>(context, "index")));
  return absl::OkStatus();
}

REGISTER_XLA_OP(Name("IpuHostCall").IsMetadataOp(), Lowering<LowerHostCall>);
REGISTER_XLA_OP(Name("IpuHostResult").IsMetadataOp(), Lowering<LowerHostResult>);

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

absl::Status LowerUserOperation(tf::XlaOpKernelContext* context) {
  const auto called = AttributeOf<std::string>(context, "called");
  const std::string name = NameForMessages(context, called);
  // Unknown if Keras traces a layer that is never compiled.
  const auto shapes = AttributeOf<std::vector<tf::PartialTensorShape>>(context, "output_shapes");
  std::vector<xla::Shape> results(context->num_outputs());
  for (int i = 0; i < context->num_outputs(); ++i) {
    tf::TensorShape shape;
    if (!shapes[i].AsTensorShape(&shape)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": `outs` has the shape ", shapes[i].DebugString(),
                       ", but a program needs static shapes: trace its function for arguments of static shape"));
    }
    TF_RETURN_IF_ERROR(tf::TensorShapeToXLAShape(context->expected_output_dtype(i), shape, &results[i]));
  }
  const std::string attributes = CallAttributes(
      {{"attributes", AttributeOf<std::string>(context, "attributes")}, {"called", called}, {"name", name}});
  return SetOutputs(context, CallWithState(context, "ipu_user_operation", ValuesOf(context), results, attributes));
}

REGISTER_XLA_OP(Name("IpuUserOperation").IsMetadataOp(), Lowering<LowerUserOperation>);

}  // namespace
}  // namespace tensorflow_ipu
