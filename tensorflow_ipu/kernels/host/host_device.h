// A device that runs the host's kernels, with resources that can outlive it.
#ifndef TENSORFLOW_IPU_KERNELS_HOST_HOST_DEVICE_H_
#define TENSORFLOW_IPU_KERNELS_HOST_HOST_DEVICE_H_

#include <memory>
#include <string>

#include "tensorflow/core/common_runtime/threadpool_device.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/public/session_options.h"

namespace tensorflow_ipu {

// TensorFlow's devices go with their session, and take their resources with them. What a dataset is made of refers to
// both by plain pointers: the caches and shuffles of TensorFlow 1 delete a resource of the device when they go, and a
// kernel looks variables and tables up there. So whoever goes on with a dataset when the session has gone needs a
// device of its own, and the resources by reference. Both come from here: all CPU devices of the process are of this
// class, and the IPU devices too.
class HostDevice : public tensorflow::ThreadPoolDevice {
 public:
  HostDevice(const tensorflow::SessionOptions& options, const std::string& name, tensorflow::Bytes memory,
             const tensorflow::DeviceLocality& locality, tensorflow::Allocator* allocator);

  tensorflow::ResourceMgr* resource_manager() override { return resources_.get(); }

  void Compute(tensorflow::OpKernel* kernel, tensorflow::OpKernelContext* context) override;

  // The same device once more: of this name, with these resources, with threads and memory of the process. It depends
  // on nothing of this one, and may outlive it.
  virtual std::unique_ptr<HostDevice> Twin(const std::string& name);

 protected:
  // A twin of `original`.
  HostDevice(HostDevice& original, const std::string& name);

 private:
  const std::shared_ptr<tensorflow::ResourceMgr> resources_;
  const bool twin_;
};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_HOST_DEVICE_H_
