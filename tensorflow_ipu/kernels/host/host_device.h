// A device for the host's kernels, with resources that can outlive it.
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

// TensorFlow's devices end with their session, with their resources. A dataset refers to both by plain pointers: it
// deletes and looks up resources there. So whoever reads a dataset after the session needs a device of its own that
// shares the resources. All CPU and IPU devices of the process are of this class.
class HostDevice : public tensorflow::ThreadPoolDevice {
 public:
  HostDevice(const tensorflow::SessionOptions& options, const std::string& name, tensorflow::Bytes memory,
             const tensorflow::DeviceLocality& locality, tensorflow::Allocator* allocator);

  tensorflow::ResourceMgr* resource_manager() override { return resources_.get(); }

  void Compute(tensorflow::OpKernel* kernel, tensorflow::OpKernelContext* context) override;

  // A device of this name with the same resources, which may outlive this one.
  virtual std::unique_ptr<HostDevice> Copy(const std::string& name);

 protected:
  HostDevice(HostDevice& original, const std::string& name);

 private:
  const std::shared_ptr<tensorflow::ResourceMgr> resources_;
  const bool is_copy_;
};

// Makes a resource that a look-up has not found.
template <typename Resource>
absl::Status MakeResource(Resource** made) {
  *made = new Resource();
  return absl::OkStatus();
}

// Copies of a session's devices (see host_device.h), for whoever reads a dataset after the session. They are made once:
// each epoch of a `fit` on each IPU begins a read. A resource of the session's first device that asks. Thread-safe.
class SessionDevices : public tensorflow::ResourceBase {
 public:
  // Of the session of an op on the host, among them one of the op's device.
  static absl::StatusOr<std::shared_ptr<const tensorflow::DeviceMgr>> Of(tensorflow::OpKernelContext* context);

  std::string DebugString() const override { return "The copies of a session's devices"; }

 private:
  absl::StatusOr<std::shared_ptr<const tensorflow::DeviceMgr>> Get(tensorflow::OpKernelContext* context);

  absl::Mutex mutex_;
  std::vector<tensorflow::Device*> originals_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const tensorflow::DeviceMgr> copies_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu
