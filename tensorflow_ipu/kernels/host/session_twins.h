// Twins of all devices of a session, for what goes on when the session has gone.
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

// The twins (see host_device.h) of a session's or context's devices. They are made once, and not for each dataset that
// is read: there is one for each IPU, and each epoch of a `fit` begins a read.
//
// It is one of the resources of the session's device that asks first, and goes when these are cleared.
//
// Thread-safe.
class SessionTwins : public tensorflow::ResourceBase {
 public:
  // Those for the session of an op on the host. They have a twin of the op's device. Who holds them may keep them.
  static absl::StatusOr<std::shared_ptr<const tensorflow::DeviceMgr>> Of(tensorflow::OpKernelContext* context);

  std::string DebugString() const override { return "The twins of a session's devices"; }

 private:
  absl::StatusOr<std::shared_ptr<const tensorflow::DeviceMgr>> Get(tensorflow::OpKernelContext* context);

  core::Mutex mutex_;
  std::vector<tensorflow::Device*> originals_ IPU_GUARDED_BY(mutex_);
  std::shared_ptr<const tensorflow::DeviceMgr> twins_ IPU_GUARDED_BY(mutex_);  // Of originals_; null before the first.
};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_SESSION_TWINS_H_
