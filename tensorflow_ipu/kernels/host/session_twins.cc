#include "tensorflow_ipu/kernels/host/session_twins.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow_ipu/kernels/host/host_device.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

absl::StatusOr<std::unique_ptr<tf::DeviceMgr>> Twins(const std::vector<tf::Device*>& devices,
                                                     const tf::DeviceBase& needed) {
  std::vector<std::unique_ptr<tf::Device>> twins;
  bool found = false;
  for (tf::Device* const device : devices) {
    auto* const host = dynamic_cast<HostDevice*>(device->UnderlyingDevice());
    // A worker may give its sessions resources of their own.
    if (host == nullptr || host->resource_manager() != device->resource_manager()) continue;
    found = found || device == &needed;
    twins.push_back(host->Twin(device->name()));
  }
  if (!found) {
    return absl::FailedPreconditionError(
        absl::StrCat("An infeed queue cannot start on `", needed.name(),
                     "`: this session was made before `import tensorflow_ipu`, or it is a remote one. Import "
                     "`tensorflow_ipu` before "
                     "the session is made, and run the `initializer` in a local session."));
  }
  return std::make_unique<tf::StaticDeviceMgr>(std::move(twins));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const tf::DeviceMgr>> SessionTwins::Of(tf::OpKernelContext* context) {
  tf::ResourceMgr* const resources = context->resource_manager();
  SessionTwins* made = nullptr;
  absl::Status status = resources->LookupOrCreate<SessionTwins>(resources->default_container(), "ipu_twins", &made,
                                                                [](SessionTwins** twins) {
                                                                  *twins = new SessionTwins();
                                                                  return absl::OkStatus();
                                                                });
  if (!status.ok()) return status;
  return tf::core::RefCountPtr<SessionTwins>(made)->Get(context);
}

absl::StatusOr<std::shared_ptr<const tf::DeviceMgr>> SessionTwins::Get(tf::OpKernelContext* context) {
  std::vector<tf::Device*> devices = context->function_library()->device_mgr()->ListDevices();
  const core::Lock lock(mutex_);
  // A context that joins a cluster gets other devices.
  if (twins_ == nullptr || devices != originals_) {
    absl::StatusOr<std::unique_ptr<tf::DeviceMgr>> twins = Twins(devices, *context->device());
    if (!twins.ok()) return twins.status();
    twins_ = *std::move(twins);
    originals_ = std::move(devices);
  }
  return twins_;
}

}  // namespace tensorflow_ipu
