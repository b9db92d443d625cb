// Starts threads, and says in words where the process may have no more.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_THREADS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_THREADS_H_

#include <functional>

#include "tensorflow_ipu/kernels/core/outcome.h"

namespace tensorflow_ipu::core {

// Runs `work` on a thread of its own, of this name (15 letters at most), which nobody waits for. Where the system gives
// no thread, `work` never runs, and the outcome is kResourceExhausted.
Outcome StartThread(const char* name, std::function<void()> work);

// Whether the system would give the process `count` threads more at once: starts them, named so, and waits for their
// ends. For code that is about to call what aborts the process where it gets no thread. An answer is for the moment.
Outcome TryThreads(const char* name, int count);

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_THREADS_H_
