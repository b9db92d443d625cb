// Thread-local objects, found fast.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_OF_THREAD_H_
#define TENSORFLOW_IPU_KERNELS_CORE_OF_THREAD_H_

namespace tensorflow_ipu::core {

// The calling thread's object of a type. A thread-local variable with a destructor checks its guard at each use; a
// plain pointer is one look-up.
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
