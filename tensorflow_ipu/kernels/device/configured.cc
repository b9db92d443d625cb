#include "tensorflow_ipu/kernels/device/configured.h"

#include <mutex>
#include <utility>

namespace tensorflow_ipu {

namespace {

std::mutex mutex;

// Guarded by mutex. Never destroyed: threads of programs may outlive static destructors.
std::vector<int32_t>& IpusOfDevices() {
  static auto* const ipus = new std::vector<int32_t>{1};
  return *ipus;
}

}  // namespace

void ConfigureDevices(std::vector<int32_t> ipus) {
  std::lock_guard<std::mutex> lock(mutex);
  configured_devices = static_cast<int32_t>(ipus.size());
  IpusOfDevices() = std::move(ipus);
}

int32_t IpusOf(int32_t ordinal) {
  std::lock_guard<std::mutex> lock(mutex);
  const std::vector<int32_t>& ipus = IpusOfDevices();
  return ordinal >= 0 && ordinal < static_cast<int32_t>(ipus.size()) ? ipus[ordinal] : 0;
}

}  // namespace tensorflow_ipu
