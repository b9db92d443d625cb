// Timers: calls that are made at a time unless they are cancelled.
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

// Due calls run on the one thread of the timers and must be short. Thread-safe. Never destroyed, since its thread may
// outlive static destructors.
class Deadlines {
 public:
  using Clock = std::chrono::steady_clock;
  using Ticket = std::pair<Clock::time_point, int64_t>;

  static Deadlines& Global();

  // Starts the thread, before the process runs out of threads.
  Outcome Prepare() IPU_EXCLUDES(mutex_);

  Ticket Add(Clock::time_point when, std::function<void()> due) IPU_EXCLUDES(mutex_);

  void Remove(const Ticket& ticket) IPU_EXCLUDES(mutex_);

 private:
  Outcome Start() IPU_REQUIRES(mutex_);
  void Work() IPU_EXCLUDES(mutex_);

  Mutex mutex_;
  Condition changed_;
  std::map<Ticket, std::function<void()>> calls_ IPU_GUARDED_BY(mutex_);
  int64_t next_ IPU_GUARDED_BY(mutex_) = 0;
  bool started_ IPU_GUARDED_BY(mutex_) = false;
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_DEADLINES_H_
