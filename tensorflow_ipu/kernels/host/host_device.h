// A device for the host's kernels. Its resources can outlive it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/common_runtime/threadpool_device.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/public/session_options.h"

namespace tensorflow_ipu {

// A TensorFlow device and its resources are destroyed with their session. A dataset refers to both by plain pointers,
// since it looks up and deletes resources. So a reader of a dataset that outlives the session needs another device with
// the same resources. All CPU and IPU devices of the process are of this class.
class HostDevice : public tensorflow::ThreadPoolDevice {
 public:
  HostDevice(const tensorflow::SessionOptions& options, const std::string& name, tensorflow::Bytes memory,
             const tensorflow::DeviceLocality& locality, tensorflow::Allocator* allocator);

  tensorflow::ResourceMgr* resource_manager() override { return resources_.get(); }

  void Compute(tensorflow::OpKernel* kernel, tensorflow::OpKernelContext* context) override;

  // Creates a device of this name with the same resources, which may outlive this one.
  virtual std::unique_ptr<HostDevice> Copy(const std::string& name);

 protected:
  HostDevice(HostDevice& original, const std::string& name);

 private:
  const std::shared_ptr<tensorflow::ResourceMgr> resources_;
  const bool is_copy_;
};

// Creates a resource that a look-up has not found.
template <typename Resource>
absl::Status MakeResource(Resource** made) {
  *made = new Resource();
  return absl::OkStatus();
}

// Copies of a session's devices (see HostDevice), for readers of a dataset that outlive the session. The copies are
// created once per session, since each epoch of a `fit` on each IPU begins a read. This object is a resource of the
// session's device that needs it first. Thread-safe.
class SessionDevices : public tensorflow::ResourceBase {
 public:
  // Returns the copies for the session of an op on the host. One of them is a copy of the op's device.
  static absl::StatusOr<std::shared_ptr<const tensorflow::DeviceMgr>> Of(tensorflow::OpKernelContext* context);

  std::string DebugString() const override { return "The copies of a session's devices"; }

 private:
  absl::StatusOr<std::shared_ptr<const tensorflow::DeviceMgr>> Get(tensorflow::OpKernelContext* context);

  absl::Mutex mutex_;
  std::vector<tensorflow::Device*> originals_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const tensorflow::DeviceMgr> copies_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu
