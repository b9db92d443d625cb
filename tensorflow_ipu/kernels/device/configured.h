// Which of the registered IPU devices the configured system has: written by the configuration, read at every op.
#ifndef TENSORFLOW_IPU_KERNELS_DEVICE_CONFIGURED_H_
#define TENSORFLOW_IPU_KERNELS_DEVICE_CONFIGURED_H_

#include <atomic>
#include <cstdint>

namespace tensorflow_ipu {

// Devices /device:IPU:0 up to this one, without it, exist. Without a configuration there is one.
inline std::atomic<int32_t> configured_devices{1};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_DEVICE_CONFIGURED_H_
