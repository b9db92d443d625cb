// Starts threads, and reports where the system has no more.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_THREADS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_THREADS_H_

#include <functional>

#include "tensorflow_ipu/kernels/core/outcome.h"

namespace tensorflow_ipu::core {

// Runs `work` on a detached thread of this name (15 letters at most). kResourceExhausted: the system has no thread.
Outcome StartThread(const char* name, std::function<void()> work);

// Whether the process can start `count` more threads now, for code that would abort without them.
Outcome TryThreads(const char* name, int count);

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_THREADS_H_
