// A mutex for moments, at half the price of a Mutex where nobody else holds it.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_SPIN_MUTEX_H_
#define TENSORFLOW_IPU_KERNELS_CORE_SPIN_MUTEX_H_

#include <atomic>
#include <chrono>
#include <thread>

#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/waiting.h"

namespace tensorflow_ipu::core {

// For what takes some nanoseconds as a rule and hardly ever meets another thread: an exchange takes it and a plain
// store gives it back, where a Mutex needs two calls and two exchanges. Who finds it held spins, then lets other
// threads run, of which the holder may be one, and looks again from time to time if that does not help.
class IPU_CAPABILITY SpinMutex {
 public:
  SpinMutex() = default;

  SpinMutex(const SpinMutex&) = delete;
  SpinMutex& operator=(const SpinMutex&) = delete;

 private:
  friend class SpinLock;

  std::atomic<bool> held_{false};
};

// Holds a SpinMutex from its making to its end.
class IPU_SCOPED_CAPABILITY SpinLock {
 public:
  explicit SpinLock(SpinMutex& mutex) IPU_ACQUIRE(mutex) : mutex_(mutex) {
    for (int tries = 0; mutex_.held_.exchange(true, std::memory_order_acquire); ++tries) AwaitFree(tries);
  }
  ~SpinLock() IPU_RELEASE() { mutex_.held_.store(false, std::memory_order_release); }

  SpinLock(const SpinLock&) = delete;
  SpinLock& operator=(const SpinLock&) = delete;

 private:
  // As many yields take longer than a new thread needs to get its turn.
  static constexpr int kYields = 64;

  // What a sleep takes at least, in any case.
  static constexpr std::chrono::microseconds kNap{50};

  void AwaitFree(int tries) const {
    for (int i = 0; i < kTriesBetweenLooks; ++i) {
      if (!mutex_.held_.load(std::memory_order_relaxed)) return;
      Pause();
    }
    if (tries < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }

  SpinMutex& mutex_;
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_SPIN_MUTEX_H_
