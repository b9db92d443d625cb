// How much memory is left.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_MEMORY_H_
#define TENSORFLOW_IPU_KERNELS_CORE_MEMORY_H_

#include <cstddef>

namespace tensorflow_ipu::core {

// Bytes that the process may use before the system has to kill something: of the machine, or of the container where
// that has a limit. Takes some ten microseconds.
std::size_t AvailableMemory();

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_MEMORY_H_
