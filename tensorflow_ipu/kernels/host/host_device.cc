#include "tensorflow_ipu/kernels/host/host_device.h"

#include <cxxabi.h>
#include <unistd.h>

#include <string_view>
#include <utility>

#include "absl/log/check.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/process_state.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/platform/numa.h"
#include "tensorflow_ipu/kernels/host/python_end.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

// A resource whose destruction clears the resources of a device. TensorFlow clears the resources of all its devices,
// including this object, before it destroys the first device.
class Clearing : public tf::ResourceBase {
 public:
  explicit Clearing(std::shared_ptr<tf::ResourceMgr> resources) : resources_(std::move(resources)) {}
  ~Clearing() override { resources_->Clear(); }

  std::string DebugString() const override { return "The resources of a device"; }

 private:
  const std::shared_ptr<tf::ResourceMgr> resources_;
};

bool CallsPython(const tf::OpKernel& kernel) {
  const std::string_view type(kernel.type_string_view().data(), kernel.type_string_view().size());
  return type == "PyFunc" || type == "PyFuncStateless" || type == "EagerPyFunc";
}

// Runs a kernel that calls Python. If the interpreter has ended, Python ends the thread by `pthread_exit`. That unwinds
// the stack, and aborts in functions that must not be unwound. So the thread waits here until the process ends, as in
// Python 3.14.
void ComputeInPython(tf::OpKernel* kernel, tf::OpKernelContext* context) {
  try {
    kernel->Compute(context);
  } catch (const abi::__forced_unwind&) {
    while (true) pause();
  }
}

// Replaces TensorFlow's factory. Apart from their class, the devices are the same.
class HostDeviceFactory : public tf::DeviceFactory {
 public:
  absl::Status ListPhysicalDevices(std::vector<std::string>* devices) override {
    devices->push_back("/physical_device:CPU:0");
    return absl::OkStatus();
  }

  absl::Status CreateDevices(const tf::SessionOptions& options, const std::string& prefix,
                             std::vector<std::unique_ptr<tf::Device>>* devices) override {
    const auto count = options.config.device_count().find("CPU");
    const int device_count = count == options.config.device_count().end() ? 1 : count->second;
    for (int i = 0; i < device_count; ++i) {
      tf::DeviceLocality locality;
      int node = tf::port::kNUMANoAffinity;
      if (options.config.experimental().use_numa_affinity()) {
        node = i % tf::port::NUMANumNodes();
        locality.set_numa_node(node);
      }
      devices->push_back(std::make_unique<HostDevice>(options, absl::StrCat(prefix, "/device:CPU:", i),
                                                      tf::Bytes(256 << 20), locality,
                                                      tf::ProcessState::singleton()->GetCPUAllocator(node)));
    }
    return absl::OkStatus();
  }
};

// The priority is above TensorFlow's factories (60, or 70 with GPUs), and below preferred devices (200).
REGISTER_LOCAL_DEVICE_FACTORY("CPU", HostDeviceFactory, 80);

}  // namespace

HostDevice::HostDevice(const tf::SessionOptions& options, const std::string& name, tf::Bytes memory,
                       const tf::DeviceLocality& locality, tf::Allocator* allocator)
    : ThreadPoolDevice(options, name, memory, locality, allocator),
      resources_(std::make_shared<tf::ResourceMgr>(Device::resource_manager()->default_container())),
      is_copy_(false) {
  CHECK_OK(Device::resource_manager()->Create(Device::resource_manager()->default_container(), "resources",
                                              new Clearing(resources_)));
}

HostDevice::HostDevice(HostDevice& original, const std::string& name)
    : ThreadPoolDevice(tf::SessionOptions(), name, tf::Bytes(original.attributes().memory_limit()),
                       original.attributes().locality(), original.GetAllocator(tf::AllocatorAttributes())),
      resources_(original.resources_),
      is_copy_(true) {}

std::unique_ptr<HostDevice> HostDevice::Copy(const std::string& name) {
  return std::unique_ptr<HostDevice>(new HostDevice(*this, name));
}

void HostDevice::Compute(tf::OpKernel* kernel, tf::OpKernelContext* context) {
  if (!is_copy_ || !CallsPython(*kernel)) return ThreadPoolDevice::Compute(kernel, context);
  if (PythonHasEnded()) {
    context->SetStatus(absl::CancelledError("A dataset of an infeed calls Python, which has ended."));
  } else {
    ComputeInPython(kernel, context);
  }
}

namespace {

absl::StatusOr<std::unique_ptr<tf::DeviceMgr>> CopiesOf(const std::vector<tf::Device*>& devices,
                                                        const tf::DeviceBase& needed) {
  std::vector<std::unique_ptr<tf::Device>> copies;
  bool found = false;
  for (tf::Device* const device : devices) {
    auto* const host = dynamic_cast<HostDevice*>(device->UnderlyingDevice());
    // A TensorFlow worker may create separate resources for its sessions.
    if (host == nullptr || host->resource_manager() != device->resource_manager()) continue;
    found = found || device == &needed;
    copies.push_back(host->Copy(device->name()));
  }
  if (!found) {
    return absl::FailedPreconditionError(
        absl::StrCat("An infeed queue cannot start on `", needed.name(),
                     "`: this session was created before `import tensorflow_ipu`, or it is remote. Import "
                     "`tensorflow_ipu` before the session is created, and run the `initializer` in a local session."));
  }
  return std::make_unique<tf::StaticDeviceMgr>(std::move(copies));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const tf::DeviceMgr>> SessionDevices::Of(tf::OpKernelContext* context) {
  tf::ResourceMgr* const resources = context->resource_manager();
  SessionDevices* session_devices = nullptr;
  TF_RETURN_IF_ERROR(resources->LookupOrCreate<SessionDevices>(resources->default_container(), "ipu_device_copies",
                                                               &session_devices, MakeResource<SessionDevices>));
  return tf::core::RefCountPtr<SessionDevices>(session_devices)->Get(context);
}

absl::StatusOr<std::shared_ptr<const tf::DeviceMgr>> SessionDevices::Get(tf::OpKernelContext* context) {
  std::vector<tf::Device*> devices = context->function_library()->device_mgr()->ListDevices();
  const absl::MutexLock lock(&mutex_);
  // A context that joins a cluster gets new devices.
  if (copies_ == nullptr || devices != originals_) {
    TF_ASSIGN_OR_RETURN(copies_, CopiesOf(devices, *context->device()));
    originals_ = std::move(devices);
  }
  return copies_;
}

}  // namespace tensorflow_ipu
