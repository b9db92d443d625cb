// `IpuConnectWorkers`: has programs of this process cross to other workers.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/collectives/buffers.h"
#include "tensorflow_ipu/kernels/collectives/workers.h"
#include "tensorflow_ipu/kernels/core/links.h"
#include "tensorflow_ipu/kernels/host/status.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// To be run eagerly on the CPU of this worker's task, after a collective of TensorFlow's over all tasks: the runtime
// knows their devices by then. `tasks` and `addresses` are those of all workers, and `limit` is in seconds: for how
// long one may wait for another. `sockets` are connected to the others, by worker, with -1 for this one, and belong to
// the kernel from now on; where there are none, messages go by TensorFlow's collective runtime.
REGISTER_OP("IpuConnectWorkers")
    .Attr("worker: int >= 0")
    .Attr("tasks: list(string)")
    .Attr("addresses: list(string)")
    .Attr("limit: float")
    .Attr("sockets: list(int)")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

namespace {

class ConnectWorkersOp : public tf::OpKernel {
 public:
  explicit ConnectWorkersOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("worker", &worker_));
    OP_REQUIRES_OK(construction, construction->GetAttr("tasks", &tasks_));
    OP_REQUIRES_OK(construction, construction->GetAttr("addresses", &addresses_));
    OP_REQUIRES_OK(construction, construction->GetAttr("limit", &limit_));
    OP_REQUIRES_OK(construction, construction->GetAttr("sockets", &sockets_));
  }

  void Compute(tf::OpKernelContext* context) override {
    tf::CollectiveExecutor* const executor = context->collective_executor();
    auto* const device = dynamic_cast<tf::Device*>(context->device());
    OP_REQUIRES(context, executor != nullptr && executor->remote_access() != nullptr && device != nullptr,
                absl::FailedPreconditionError("This process has not joined a cluster of TensorFlow's."));
    const std::chrono::duration<double> limit(limit_);
    auto workers = std::make_shared<core::Workers>();
    workers->worker = worker_;
    workers->addresses = addresses_;
    workers->limit = std::chrono::duration_cast<std::chrono::nanoseconds>(limit);
    if (sockets_.empty()) {
      workers->network = std::make_shared<BufferNetwork>(executor, device, tasks_);
    } else {
      core::Outcome outcome;
      workers->network = core::Links::Make(sockets_, &outcome);
      OP_REQUIRES_OK(context, ToStatus(outcome));
    }
    SetWorkers(std::move(workers));
  }

 private:
  int64_t worker_ = 0;
  std::vector<std::string> tasks_;
  std::vector<std::string> addresses_;
  float limit_ = 0;
  std::vector<int> sockets_;
};

REGISTER_KERNEL_BUILDER(Name("IpuConnectWorkers").Device(tf::DEVICE_CPU), ConnectWorkersOp);

}  // namespace
}  // namespace tensorflow_ipu
