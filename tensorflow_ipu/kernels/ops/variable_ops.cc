// Ops of the host on the variables of programs: state variables, and the values of single replicas.
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow_ipu/kernels/ops/kernel.h"
#include "tensorflow_ipu/kernels/replicas/copies.h"
#include "tensorflow_ipu/kernels/support/program_state.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

// `IpuFeedState`: the state variable that identifies a feed, a replica and a position in a compiled program.
//
// The state is a value and not an attribute, so that another feed with the same element spec runs the same executable.
// The program reads and assigns it at each use. This keeps the uses of a feed in program order through loops and
// branches. The program's order of all feeds is such a variable too, with a feed number below 0.
//
// The op creates the variable with its value, or finds the variable that it created before for the same feed and
// replica. So it needs no initializer in a graph. The variable lives until the handle's resource is destroyed. With
// `per_step`, each step has a separate variable until it ends.
REGISTER_OP("IpuFeedState")
    .Input("initial: int64")
    .Output("state: resource")
    .Attr("per_step: bool = false")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Scalar());
      c->set_output_handle_shapes_and_types(
          0, std::vector<tf::shape_inference::ShapeAndType>{{c->input(0), tf::DT_INT64}});
      return absl::OkStatus();
    });

// Outputs the handle of a variable. A new variable gets the value `first()`.
template <typename First>
absl::Status OutputVariable(tf::OpKernelContext* context, tf::ResourceHandle handle, tf::DataType dtype,
                            const tf::TensorShape& shape, First first) {
  handle.set_dtypes_and_shapes({{dtype, shape}});
  tf::core::RefCountPtr<tf::Var> variable;
  TF_RETURN_IF_ERROR(tf::LookupOrCreateResource<tf::Var>(context, handle, &variable, [&](tf::Var** created) {
    *created = new tf::Var(dtype);
    *(*created)->tensor() = first();
    (*created)->is_initialized = true;
    return absl::OkStatus();
  }));
  tf::Tensor* output = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(0, tf::TensorShape({}), &output));
  output->scalar<tf::ResourceHandle>()() = std::move(handle);
  return absl::OkStatus();
}

absl::Status MakeFeedState(tf::OpKernelContext* context) {
  const tf::Tensor& initial = context->input(0);
  if (initial.NumElements() != core::kProgramStateSize) {
    return absl::InvalidArgumentError(absl::StrCat("`initial` must have ", core::kProgramStateSize,
                                                   " elements, but has ", initial.NumElements(), "."));
  }
  const auto value = initial.flat<int64_t>();
  const std::string name = core::ProgramState{value(0), value(1), value(2), value(3)}.VariableName();
  tf::ResourceHandle handle =
      tf::GetNodeAttr<bool>(context->op_kernel().def(), "per_step").value()
          ? context->step_container()->MakeResourceHandle<tf::Var>(name, *context->device())
          : tf::MakeResourceHandle<tf::Var>(context, context->resource_manager()->default_container(), name);
  // A copy, since programs write in place.
  return OutputVariable(context, std::move(handle), tf::DT_INT64, initial.shape(),
                        [&initial] { return tf::tensor::DeepCopy(initial); });
}

REGISTER_KERNEL_BUILDER(Name("IpuFeedState").Device(tf::DEVICE_CPU), FunctionOp<MakeFeedState>);

// `IpuKeptVariable`: a variable of a graph that is initially zero and needs no initializer: its first use creates it.
//
// It stores data that an operation keeps from run to run without the user's involvement, such as the values of a delay
// line.
REGISTER_OP("IpuKeptVariable")
    .Output("variable: resource")
    .Attr("dtype: type")
    .Attr("shape: shape")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::DataType dtype;
      tf::PartialTensorShape shape;
      tf::shape_inference::ShapeHandle handle;
      TF_RETURN_IF_ERROR(c->GetAttr("dtype", &dtype));
      TF_RETURN_IF_ERROR(c->GetAttr("shape", &shape));
      TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shape, &handle));
      c->set_output(0, c->Scalar());
      c->set_output_handle_shapes_and_types(0, std::vector<tf::shape_inference::ShapeAndType>{{handle, dtype}});
      return absl::OkStatus();
    });

class KeptVariableOp : public tf::OpKernel {
 public:
  explicit KeptVariableOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(construction, construction->GetAttr("shape", &shape_));
    OP_REQUIRES(construction, tf::DataTypeCanUseMemcpy(dtype_),
                absl::InvalidArgumentError("An operation can only keep tensors of a numeric type from run to run."));
  }

  void Compute(tf::OpKernelContext* context) override {
    tf::ResourceHandle handle =
        tf::MakeResourceHandle<tf::Var>(context, context->resource_manager()->default_container(), name());
    OP_REQUIRES_OK(context, OutputVariable(context, std::move(handle), dtype_, shape_, [this] {
                     tf::Tensor zeros(dtype_, shape_);
                     if (zeros.TotalBytes() > 0) std::memset(zeros.data(), 0, zeros.TotalBytes());
                     return zeros;
                   }));
  }

 private:
  tf::DataType dtype_;
  tf::TensorShape shape_;
};

REGISTER_KERNEL_BUILDER(Name("IpuKeptVariable").Device(tf::DEVICE_CPU), KeptVariableOp);

// Reads the copy of replica `replica`.
REGISTER_OP("IpuReplicaRead")
    .Input("variable: resource")
    .Input("replica: int64")
    .Output("value: dtype")
    .Attr("dtype: type")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::UnknownShape);

// Assigns replica `replica` of `replicas` a separate value.
REGISTER_OP("IpuReplicaWrite")
    .Input("variable: resource")
    .Input("replica: int64")
    .Input("replicas: int64")
    .Input("value: dtype")
    .Attr("dtype: type")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

absl::Status ReadReplica(tf::OpKernelContext* context) {
  tf::core::RefCountPtr<tf::Var> variable;
  TF_RETURN_IF_ERROR(tf::LookupResource(context, tf::HandleFromInput(context, 0), &variable));
  tf::Tensor value;
  TF_RETURN_IF_ERROR(Copies::Global().Read(variable.get(), context->input(1).scalar<int64_t>()(), &value));
  // A copy, since a program may write the buffer in place if it seems to be the only owner.
  context->set_output(0, tf::tensor::DeepCopy(value));
  return absl::OkStatus();
}

absl::Status WriteReplica(tf::OpKernelContext* context) {
  tf::core::RefCountPtr<tf::Var> variable;
  TF_RETURN_IF_ERROR(tf::LookupResource(context, tf::HandleFromInput(context, 0), &variable));
  const int64_t replica = context->input(1).scalar<int64_t>()();
  const int64_t replicas = context->input(2).scalar<int64_t>()();
  if (replica < 0 || replica >= replicas) {
    return absl::InvalidArgumentError(absl::StrCat("There is no replica ", replica, " of ", replicas, "."));
  }
  return Copies::Global().Write(context->resource_manager(), variable.get(), replica, replicas,
                                tf::tensor::DeepCopy(context->input(3)));
}

REGISTER_KERNEL_BUILDER(Name("IpuReplicaRead").Device(tf::DEVICE_CPU), FunctionOp<ReadReplica>);
REGISTER_KERNEL_BUILDER(Name("IpuReplicaWrite").Device(tf::DEVICE_CPU), FunctionOp<WriteReplica>);

}  // namespace
}  // namespace tensorflow_ipu
