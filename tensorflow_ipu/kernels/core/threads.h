// Starts threads, and says in words where the process may have no more.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_THREADS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_THREADS_H_

#include <functional>

#include "tensorflow_ipu/kernels/core/outcome.h"

namespace tensorflow_ipu::core {

// Runs `work` on a thread of its own, of this name (15 letters at most), which nobody waits for. Where the system gives
// no thread, `work` never runs, and the outcome is kResourceExhausted.
Outcome StartThread(const char* name, std::function<void()> work);

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_THREADS_H_
