// A device for the host's kernels, with resources that can outlive it.
#ifndef TENSORFLOW_IPU_KERNELS_HOST_HOST_DEVICE_H_
#define TENSORFLOW_IPU_KERNELS_HOST_HOST_DEVICE_H_

#include <memory>
#include <string>

#include "tensorflow/core/common_runtime/threadpool_device.h"
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
  virtual std::unique_ptr<HostDevice> Twin(const std::string& name);

 protected:
  HostDevice(HostDevice& original, const std::string& name);

 private:
  const std::shared_ptr<tensorflow::ResourceMgr> resources_;
  const bool twin_;
};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_HOST_DEVICE_H_
