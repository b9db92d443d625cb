// Threads, timers, and the pool of threads on which programs continue after a wait.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"

namespace tensorflow_ipu::core {

// Runs `work` on a detached thread of this name (15 letters at most). kResourceExhausted: the system has no thread.
absl::Status StartThread(const char* name, std::function<void()> work);

// Whether the process can start `count` more threads now, for code that would abort without them.
absl::Status TryThreads(const char* name, int count);

// Due calls run on the one thread of the timers and must be short. Thread-safe. Never destroyed, since its thread may
// outlive static destructors.
class Deadlines {
 public:
  using Clock = std::chrono::steady_clock;
  using Ticket = std::pair<Clock::time_point, int64_t>;

  static Deadlines& Global() { return NeverDestroyed<Deadlines>(); }

  // Starts the thread, before the process runs out of threads.
  absl::Status Prepare() ABSL_LOCKS_EXCLUDED(mutex_);

  Ticket Add(Clock::time_point when, std::function<void()> due) ABSL_LOCKS_EXCLUDED(mutex_);

  void Remove(const Ticket& ticket) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Status Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::map<Ticket, std::function<void()>> calls_ ABSL_GUARDED_BY(mutex_);
  int64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
};

// A task may run for long (it can be the rest of a training loop), so no task waits for another one: the pool
// starts a thread for it. If the system has no thread, the task is called with that status on the thread of the
// deadlines. Thread-safe. Never destroyed, since detached threads may outlive static destructors.
class Executor {
 public:
  // If `started` is an error, the task has no thread of its own and must be short.
  using Task = std::function<void(const absl::Status& started)>;

  static Executor& Global() { return NeverDestroyed<Executor>(); }

  void Run(Task task) ABSL_LOCKS_EXCLUDED(mutex_);

  // Has this thread of the executor run another task right after its own.
  static void RunAfterThis(Task task);

  // Has this thread spin so long after its task to take the next one without a wake. One core at least stays free.
  static void SpinAfterTask(std::chrono::nanoseconds limit);

  void AwaitSpinningThread(std::chrono::nanoseconds limit) const;

  // Waits until no task runs or is queued. Returns false after `limit`.
  bool AwaitIdle(std::chrono::nanoseconds limit) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);
  void Refuse(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);

  bool MaySpin() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SpinForTask() const ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  absl::CondVar tasks_ready_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;     // Threads that wait for a task.
  std::size_t unfinished_ ABSL_GUARDED_BY(mutex_) = 0;  // Tasks that run or are queued.

  // Written with mutex_ held; read without it while spinning.
  std::atomic<std::size_t> ready_{0};     // The size of tasks_.
  std::atomic<std::size_t> spinning_{0};  // Of the waiting threads, those that are awake.
};

}  // namespace tensorflow_ipu::core
