#include "tensorflow_ipu/kernels/device/configured.h"

#include <mutex>
#include <utility>

namespace tensorflow_ipu {

namespace {

std::mutex mutex;

// Guarded by mutex. Never destroyed: threads of programs may outlive static destructors.
std::vector<Configured>& Devices() {
  static auto* const devices = new std::vector<Configured>{{1, Connection::kAlways}};
  return *devices;
}

}  // namespace

void ConfigureDevices(std::vector<Configured> devices) {
  std::lock_guard<std::mutex> lock(mutex);
  configured_devices = static_cast<int32_t>(devices.size());
  Devices() = std::move(devices);
}

Configured ConfiguredAt(int64_t ordinal) {
  std::lock_guard<std::mutex> lock(mutex);
  const std::vector<Configured>& devices = Devices();
  return ordinal >= 0 && ordinal < static_cast<int64_t>(devices.size()) ? devices[ordinal] : Configured{};
}

}  // namespace tensorflow_ipu
