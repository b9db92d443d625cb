#include "tensorflow_ipu/kernels/device/configured.h"

#include <utility>

#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu {

namespace {

// Never destroyed: threads of programs may outlive static destructors.
struct System {
  core::Mutex mutex;
  std::vector<Configured> devices IPU_GUARDED_BY(mutex) = {{1, Connection::kAlways}};
};

System& TheSystem() {
  static auto* const system = new System();
  return *system;
}

}  // namespace

void ConfigureDevices(std::vector<Configured> devices) {
  System& system = TheSystem();
  const core::Lock lock(system.mutex);
  configured_devices = static_cast<int32_t>(devices.size());
  system.devices = std::move(devices);
}

Configured ConfiguredAt(int64_t ordinal) {
  System& system = TheSystem();
  const core::Lock lock(system.mutex);
  const std::vector<Configured>& devices = system.devices;
  return ordinal >= 0 && ordinal < static_cast<int64_t>(devices.size()) ? devices[ordinal] : Configured{};
}

}  // namespace tensorflow_ipu
