// Ops of the host on a replica's copy of a variable.
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow_ipu/kernels/replicas/copies.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// Reads the copy of replica `replica`.
REGISTER_OP("IpuReplicaRead")
    .Input("variable: resource")
    .Input("replica: int64")
    .Output("value: dtype")
    .Attr("dtype: type")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::UnknownShape);

// Gives replica `replica` of `replicas` its own value.
REGISTER_OP("IpuReplicaWrite")
    .Input("variable: resource")
    .Input("replica: int64")
    .Input("replicas: int64")
    .Input("value: dtype")
    .Attr("dtype: type")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

namespace {

class ReplicaReadOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    tf::core::RefCountPtr<tf::Var> variable;
    OP_REQUIRES_OK(context, tf::LookupResource(context, tf::HandleFromInput(context, 0), &variable));
    tf::Tensor value;
    OP_REQUIRES_OK(context, Copies::Global().Read(variable.get(), context->input(1).scalar<int64_t>()(), &value));
    // A copy, since a program may write the buffer in place once nobody else seems to hold it.
    context->set_output(0, tf::tensor::DeepCopy(value));
  }
};

class ReplicaWriteOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    tf::core::RefCountPtr<tf::Var> variable;
    OP_REQUIRES_OK(context, tf::LookupResource(context, tf::HandleFromInput(context, 0), &variable));
    const int64_t replica = context->input(1).scalar<int64_t>()();
    const int64_t replicas = context->input(2).scalar<int64_t>()();
    OP_REQUIRES(context, 0 <= replica && replica < replicas,
                absl::InvalidArgumentError(absl::StrCat("There is no replica ", replica, " of ", replicas, ".")));
    OP_REQUIRES_OK(context, Copies::Global().Write(context->resource_manager(), variable.get(), replica, replicas,
                                                   tf::tensor::DeepCopy(context->input(3))));
  }
};

REGISTER_KERNEL_BUILDER(Name("IpuReplicaRead").Device(tf::DEVICE_CPU), ReplicaReadOp);
REGISTER_KERNEL_BUILDER(Name("IpuReplicaWrite").Device(tf::DEVICE_CPU), ReplicaWriteOp);

}  // namespace
}  // namespace tensorflow_ipu
