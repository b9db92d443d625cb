// Whether any other thread of this process is runnable.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_ACTIVITY_H_
#define TENSORFLOW_IPU_KERNELS_CORE_ACTIVITY_H_

namespace tensorflow_ipu::core {

// Whether a thread other than the caller's runs, is runnable, or waits for a disk. This tells a process that is starved
// of processor time from one whose threads are deadlocked: neither uses any.
//
// Thread-safe. Takes a millisecond for a hundred threads. False where the system does not tell.
bool OthersCompute();

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_ACTIVITY_H_
