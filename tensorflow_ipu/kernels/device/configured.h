// Which of the registered IPU devices the configured system has: written by the configuration, read at every op.
#ifndef TENSORFLOW_IPU_KERNELS_DEVICE_CONFIGURED_H_
#define TENSORFLOW_IPU_KERNELS_DEVICE_CONFIGURED_H_

#include <atomic>
#include <cstdint>
#include <vector>

namespace tensorflow_ipu {

// Devices /device:IPU:0 up to this one, without it, exist. Without a configuration there is one.
inline std::atomic<int32_t> configured_devices{1};

// The system has one device an entry, of so many IPUs.
void ConfigureDevices(std::vector<int32_t> ipus);

// How many IPUs /device:IPU:<ordinal> groups; 0 where it does not exist.
int32_t IpusOf(int32_t ordinal);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_DEVICE_CONFIGURED_H_
