// One after the other: what must not run at the same time as others of its kind, without a thread that waits.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_TURNS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_TURNS_H_

#include <deque>
#include <functional>
#include <mutex>
#include <utility>

namespace tensorflow_ipu::core {

// A turn lasts from the call of `start` to the call of End, on whichever threads. Turns come in the order of Take.
//
// Thread-safe.
class Turns {
 public:
  // Calls `start` when its turn has come: at once and on this thread, or in the End of the turn before.
  void Take(std::function<void()> start) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (taken_) {
        waiting_.push_back(std::move(start));
        return;
      }
      taken_ = true;
    }
    start();
  }

  // Ends the turn under way, and starts the next.
  void End() {
    std::function<void()> next;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (waiting_.empty()) {
        taken_ = false;
        return;
      }
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    next();
  }

 private:
  std::mutex mutex_;
  bool taken_ = false;                         // Guarded by mutex_.
  std::deque<std::function<void()>> waiting_;  // Guarded by mutex_.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_TURNS_H_
