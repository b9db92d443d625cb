// Calls that come due at a time unless they are taken back: the clock of every asynchronous wait.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_DEADLINES_H_
#define TENSORFLOW_IPU_KERNELS_CORE_DEADLINES_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "tensorflow_ipu/kernels/core/outcome.h"

namespace tensorflow_ipu::core {

// Its one thread starts with the first deadline, or before. Due calls run on that thread and must be short.
//
// Thread-safe. The one instance is never destroyed, since its thread may outlive static destructors.
class Deadlines {
 public:
  using Clock = std::chrono::steady_clock;
  using Ticket = std::pair<Clock::time_point, int64_t>;

  static Deadlines& Global();

  // Sees to it that the thread is there. To be called before something starts that may need deadlines when the system
  // gives no more threads: without this one, nothing comes due.
  Outcome Prepare();

  // `due` runs at `when` or soon after.
  Ticket Add(Clock::time_point when, std::function<void()> due);

  // Takes a deadline back. One that is running or has run is let be.
  void Remove(const Ticket& ticket);

 private:
  Outcome StartLocked();
  void Work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Ticket, std::function<void()>> calls_;  // Guarded by mutex_; in the order in which they come due.
  int64_t next_ = 0;                               // Guarded by mutex_.
  bool started_ = false;                           // Guarded by mutex_.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_DEADLINES_H_
