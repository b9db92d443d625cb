#ifndef TENSORFLOW_IPU_KERNELS_DEVICE_PROGRAM_COMPILER_H_
#define TENSORFLOW_IPU_KERNELS_DEVICE_PROGRAM_COMPILER_H_

#include <atomic>

#include "tensorflow/core/framework/device.h"

namespace tensorflow_ipu {

// Called on a device before its first program: puts our compiler where TensorFlow looks for one. Set when the library
// is loaded.
inline std::atomic<void (*)(tensorflow::Device*)> install_compiler{nullptr};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_DEVICE_PROGRAM_COMPILER_H_
