// The configuration of the TensorFlow devices /device:IPU:<n>.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/device.h"

namespace tensorflow_ipu {

// The number of configured devices, which is read at every op. The devices /device:IPU:0 to /device:IPU:<count - 1>
// exist. Without a configuration there is one device.
inline std::atomic<int32_t> configured_devices{1};

// When a device runs programs. The values equal those of Python's `DeviceConnectionType`.
enum class Connection : int32_t {
  kAlways = 0,
  kOnDemand = 1,
  kNever = 2,       // It runs no programs.
  kPreCompile = 3,  // It only compiles programs; runs return zeros.
};

// The configuration of a device.
struct Configured {
  int32_t ipus = 0;  // The number of IPUs; 0 if the device does not exist.
  Connection connection = Connection::kAlways;
};

// Sets the devices of the system.
void ConfigureDevices(std::vector<Configured> devices);

// Returns the configuration of /device:IPU:<ordinal>.
Configured ConfiguredAt(int64_t ordinal);

// Called for a device before its first program. It registers this package's compiler with TensorFlow. Set when the
// library is loaded.
inline std::atomic<void (*)(tensorflow::Device*)> install_compiler{nullptr};

}  // namespace tensorflow_ipu
