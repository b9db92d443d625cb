// Timers: calls that are made at a time unless they are cancelled. Every asynchronous wait has one for its limit.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_DEADLINES_H_
#define TENSORFLOW_IPU_KERNELS_CORE_DEADLINES_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "tensorflow_ipu/kernels/core/mutex.h"
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

  // Starts the thread if it does not run yet. To be called before something starts that may need deadlines when the
  // system gives no more threads.
  Outcome Prepare() IPU_EXCLUDES(mutex_);

  // `due` runs at `when` or soon after.
  Ticket Add(Clock::time_point when, std::function<void()> due) IPU_EXCLUDES(mutex_);

  // Cancels a deadline whose call was not begun yet.
  void Remove(const Ticket& ticket) IPU_EXCLUDES(mutex_);

 private:
  Outcome Start() IPU_REQUIRES(mutex_);
  void Work() IPU_EXCLUDES(mutex_);

  Mutex mutex_;
  Condition changed_;
  std::map<Ticket, std::function<void()>> calls_ IPU_GUARDED_BY(mutex_);  // In the order in which they come due.
  int64_t next_ IPU_GUARDED_BY(mutex_) = 0;
  bool started_ IPU_GUARDED_BY(mutex_) = false;
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_DEADLINES_H_
