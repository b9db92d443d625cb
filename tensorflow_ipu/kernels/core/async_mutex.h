// A mutex that is locked by a callback: what must not run at the same time, without a thread that waits.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_ASYNC_MUTEX_H_
#define TENSORFLOW_IPU_KERNELS_CORE_ASYNC_MUTEX_H_

#include <deque>
#include <functional>
#include <utility>

#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu::core {

// It may be unlocked on another thread than it was locked on. It is given to whoever waits in the order of Lock.
//
// Thread-safe.
class AsyncMutex {
 public:
  // Calls `locked` as soon as the mutex is locked: at once and on this thread, or in the Unlock before.
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

  // Unlocks the mutex, or locks it for the next one.
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
