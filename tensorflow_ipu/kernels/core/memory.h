// The memory that is left.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_MEMORY_H_
#define TENSORFLOW_IPU_KERNELS_CORE_MEMORY_H_

#include <cstddef>

namespace tensorflow_ipu::core {

// Bytes that the process can use before the out-of-memory killer acts, on the machine or in the container. Takes about
// 10 us.
std::size_t AvailableMemory();

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_MEMORY_H_
