// What other folders know of the TensorFlow devices /device:IPU:<n>.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/device.h"

namespace tensorflow_ipu {

// The configuration of the system, which is read at every op: devices /device:IPU:0 to /device:IPU:<count - 1> exist.
// Without a configuration there is one.
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

// Called on a device before its first program: puts our compiler where TensorFlow looks for one. Set when the library
// is loaded.
inline std::atomic<void (*)(tensorflow::Device*)> install_compiler{nullptr};

}  // namespace tensorflow_ipu
