// The resumption of programs that waited for each other, on one or more threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"

namespace tensorflow_ipu::core {

// A running median of durations. Each duration changes the median by at most an eighth, so that outliers, as when a
// thread loses its core, have little effect. Thread-safe; of several concurrent calls of Note, only one may have an
// effect.
class RunningMedian {
 public:
  // Returns the largest int64 before the first call of Note.
  int64_t nanoseconds() const { return nanoseconds_.load(std::memory_order_relaxed); }

  void Note(int64_t nanoseconds) {
    const int64_t before = this->nanoseconds();
    const int64_t step = before / 8 + 100;
    const int64_t after = before == kUnknown ? nanoseconds : before + std::clamp(nanoseconds - before, -step, step);
    nanoseconds_.store(after, std::memory_order_relaxed);
  }

 private:
  static constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

  std::atomic<int64_t> nanoseconds_{kUnknown};
};

// Receives the status of a wait. A callback may run the rest of a program, up to its next wait.
using Callback = std::function<void(absl::Status)>;

// Calls the callbacks that are not null on other threads. May be called while a lock is held.
void RunCallbacksLater(std::vector<Callback> callbacks, const absl::Status& status);

// Calls the callbacks of programs that waited at one call site, on this thread if that is faster. `run_time` is how
// long they run until their next wait.
void RunCallbacks(std::vector<Callback> callbacks, const std::shared_ptr<RunningMedian>& run_time);

// Like RunCallbacks, as the last step of a task of the executor.
void RunCallbacksFromTask(std::vector<Callback> callbacks, const std::shared_ptr<RunningMedian>& run_time);

// Returns how long a thread that resumed programs spins for its next task. Waking it instead may move it to a core that
// another thread uses.
std::chrono::nanoseconds TaskSpin(const RunningMedian& run_time);

int64_t Cores();

}  // namespace tensorflow_ipu::core
