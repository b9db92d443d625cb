// The error of ops of programs that run outside of one.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

class UncompiledOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    context->SetStatus(absl::FailedPreconditionError(
        absl::StrCat("`", type_string(),
                     "` runs in a compiled program alone. Call the function that uses it with "
                     "`IPUStrategy.run` (in a graph for a session: with `compiler.compile` inside of `ipu_scope`), or "
                     "decorate it with "
                     "`@tf.function(jit_compile=True)`.")));
  }
};

REGISTER_KERNEL_BUILDER(Name("IpuAllGather").Device(tf::DEVICE_CPU), UncompiledOp);
REGISTER_KERNEL_BUILDER(Name("IpuAllReduce").Device(tf::DEVICE_CPU), UncompiledOp);
REGISTER_KERNEL_BUILDER(Name("IpuAllToAll").Device(tf::DEVICE_CPU), UncompiledOp);
REGISTER_KERNEL_BUILDER(Name("IpuBroadcast").Device(tf::DEVICE_CPU), UncompiledOp);
REGISTER_KERNEL_BUILDER(Name("IpuHostCall").Device(tf::DEVICE_CPU), UncompiledOp);
REGISTER_KERNEL_BUILDER(Name("IpuHostResult").Device(tf::DEVICE_CPU), UncompiledOp);
REGISTER_KERNEL_BUILDER(Name("IpuInfeedDequeue").Device(tf::DEVICE_CPU), UncompiledOp);
REGISTER_KERNEL_BUILDER(Name("IpuJoinOrders").Device(tf::DEVICE_CPU), UncompiledOp);
REGISTER_KERNEL_BUILDER(Name("IpuMicroBatches").Device(tf::DEVICE_CPU), UncompiledOp);
REGISTER_KERNEL_BUILDER(Name("IpuOutfeedEnqueue").Device(tf::DEVICE_CPU), UncompiledOp);
REGISTER_KERNEL_BUILDER(Name("IpuRandomSeed").Device(tf::DEVICE_CPU), UncompiledOp);
REGISTER_KERNEL_BUILDER(Name("IpuRandomStream").Device(tf::DEVICE_CPU), UncompiledOp);
REGISTER_KERNEL_BUILDER(Name("IpuReduceScatter").Device(tf::DEVICE_CPU), UncompiledOp);
REGISTER_KERNEL_BUILDER(Name("IpuReplicaIndex").Device(tf::DEVICE_CPU), UncompiledOp);
REGISTER_KERNEL_BUILDER(Name("IpuUserOperation").Device(tf::DEVICE_CPU), UncompiledOp);

}  // namespace
}  // namespace tensorflow_ipu
