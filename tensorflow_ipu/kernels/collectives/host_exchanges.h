// Tensors of the host that all workers exchange outside of programs, on Python's main thread: those that this process
// has begun, so that another worker that waits for it in a run learns where it is.
#ifndef TENSORFLOW_IPU_KERNELS_COLLECTIVES_HOST_EXCHANGES_H_
#define TENSORFLOW_IPU_KERNELS_COLLECTIVES_HOST_EXCHANGES_H_

#include <cstdint>
#include <string>

namespace tensorflow_ipu {

// The next exchange begins, of this in words; others may ask for it until it ends. The last one has ended.
void BeginHostExchange(const std::string& words);
void EndHostExchange();

// How many have begun.
int64_t HostExchangesBegun();

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_COLLECTIVES_HOST_EXCHANGES_H_
