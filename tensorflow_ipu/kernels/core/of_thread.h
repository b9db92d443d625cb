// What a thread keeps for itself, found fast.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_OF_THREAD_H_
#define TENSORFLOW_IPU_KERNELS_CORE_OF_THREAD_H_

namespace tensorflow_ipu::core {

// The calling thread's own object of a type, which lasts as long as the thread. A variable whose destructor has to run
// asks at each use whether it was made, in memory of the thread that is looked up anew; a plain pointer is one look-up.
template <typename T>
T& OfThread() {
  static thread_local T* known = nullptr;
  if (known == nullptr) {
    static thread_local T object;
    known = &object;
  }
  return *known;
}

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_OF_THREAD_H_
