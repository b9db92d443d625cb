// A mutex that calls back once it is locked, so that no thread waits.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_ASYNC_MUTEX_H_
#define TENSORFLOW_IPU_KERNELS_CORE_ASYNC_MUTEX_H_

#include <deque>
#include <functional>
#include <utility>

#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu::core {

// First come, first served. Unlocked on any thread. Thread-safe.
class AsyncMutex {
 public:
  // Calls `locked` at once if the mutex is free, else from an Unlock.
  void Lock(std::function<void()> locked) IPU_EXCLUDES(mutex_) {
    {
      const core::Lock lock(mutex_);
      if (locked_) {
        waiting_.push_back(std::move(locked));
        return;
      }
      locked_ = true;
    }
    locked();
  }

  void Unlock() IPU_EXCLUDES(mutex_) {
    std::function<void()> next;
    {
      const core::Lock lock(mutex_);
      if (waiting_.empty()) {
        locked_ = false;
        return;
      }
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    next();
  }

 private:
  Mutex mutex_;
  bool locked_ IPU_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> waiting_ IPU_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_ASYNC_MUTEX_H_
