// Whether this process has anything to do at this moment.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_ACTIVITY_H_
#define TENSORFLOW_IPU_KERNELS_CORE_ACTIVITY_H_

namespace tensorflow_ipu::core {

// Whether a thread other than the caller's computes, would compute if it had a processor, or waits for a disk. A
// process that gets no processor is so told from one whose threads all wait for each other, which use none either.
//
// Thread-safe. Takes a millisecond for a hundred threads. False where the system does not tell.
bool OthersCompute();

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_ACTIVITY_H_
