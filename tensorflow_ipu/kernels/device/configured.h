// The IPU devices of the configured system: written by the configuration, read at every op.
#ifndef TENSORFLOW_IPU_KERNELS_DEVICE_CONFIGURED_H_
#define TENSORFLOW_IPU_KERNELS_DEVICE_CONFIGURED_H_

#include <atomic>
#include <cstdint>
#include <vector>

namespace tensorflow_ipu {

// Devices /device:IPU:0 to /device:IPU:<count - 1> exist. Without a configuration there is one.
inline std::atomic<int32_t> configured_devices{1};

// When a device runs programs; the numbers are those of Python's `DeviceConnectionType`.
enum class Connection : int32_t {
  kAlways = 0,
  kOnDemand = 1,
  kNever = 2,       // It runs none.
  kPreCompile = 3,  // Only compiles; runs give zeros.
};

// The configuration of a device.
struct Configured {
  int32_t ipus = 0;  // 0 if it does not exist.
  Connection connection = Connection::kAlways;
};

// Sets the devices of the system.
void ConfigureDevices(std::vector<Configured> devices);

// The configuration of /device:IPU:<ordinal>.
Configured ConfiguredAt(int64_t ordinal);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_DEVICE_CONFIGURED_H_
