#ifndef TENSORFLOW_IPU_KERNELS_HOST_SESSION_TWINS_H_
#define TENSORFLOW_IPU_KERNELS_HOST_SESSION_TWINS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu {

// Copies of a session's devices (see host_device.h), for whoever reads a dataset after the session. They are made once:
// each epoch of a `fit` on each IPU begins a read. A resource of the session's first device that asks. Thread-safe.
class SessionTwins : public tensorflow::ResourceBase {
 public:
  // Of the session of an op on the host, among them one of the op's device.
  static absl::StatusOr<std::shared_ptr<const tensorflow::DeviceMgr>> Of(tensorflow::OpKernelContext* context);

  std::string DebugString() const override { return "The twins of a session's devices"; }

 private:
  absl::StatusOr<std::shared_ptr<const tensorflow::DeviceMgr>> Get(tensorflow::OpKernelContext* context);

  core::Mutex mutex_;
  std::vector<tensorflow::Device*> originals_ IPU_GUARDED_BY(mutex_);
  std::shared_ptr<const tensorflow::DeviceMgr> twins_ IPU_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_SESSION_TWINS_H_
