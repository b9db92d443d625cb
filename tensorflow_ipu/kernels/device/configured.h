// Which of the registered IPU devices the configured system has: written by the configuration, read at every op.
#ifndef TENSORFLOW_IPU_KERNELS_DEVICE_CONFIGURED_H_
#define TENSORFLOW_IPU_KERNELS_DEVICE_CONFIGURED_H_

#include <atomic>
#include <cstdint>
#include <vector>

namespace tensorflow_ipu {

// Devices /device:IPU:0 up to this one, without it, exist. Without a configuration there is one.
inline std::atomic<int32_t> configured_devices{1};

// What a device does with programs; the numbers are those of Python's `DeviceConnectionType`.
enum class Connection : int32_t {
  kAlways = 0,
  kOnDemand = 1,
  kNever = 2,       // It runs none.
  kPreCompile = 3,  // It runs none, and each run gives zeros.
};

// What is configured of a device.
struct Configured {
  int32_t ipus = 0;  // None where it does not exist.
  Connection connection = Connection::kAlways;
};

// The system has one device an entry.
void ConfigureDevices(std::vector<Configured> devices);

// What /device:IPU:<ordinal> is now.
Configured ConfiguredAt(int64_t ordinal);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_DEVICE_CONFIGURED_H_
