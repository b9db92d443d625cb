// Detects other runnable threads of this process.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_ACTIVITY_H_
#define TENSORFLOW_IPU_KERNELS_CORE_ACTIVITY_H_

namespace tensorflow_ipu::core {

// Whether another thread runs, is runnable or waits for a disk. It tells a starved process from a deadlocked one. False
// where /proc is missing. Thread-safe; takes about a millisecond for 100 threads.
bool OthersCompute();

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_ACTIVITY_H_
