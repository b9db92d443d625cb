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

// Runs `work` on a detached thread of this name, which has at most 15 characters. Returns kResourceExhausted if the
// system cannot start a thread.
absl::Status StartThread(const char* name, std::function<void()> work);

// Returns an error if the process cannot start `count` more threads now. Used before code that would abort without
// them.
absl::Status TryThreads(const char* name, int count);

// Calls functions at given times. They run on a single thread and must return quickly. Thread-safe. Never destroyed,
// since the thread may outlive static destructors.
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

// A pool of threads for tasks. A task may run for long (it can be the rest of a training loop), so no task waits for
// another one: if no thread is idle, the pool starts one. If the system cannot start a thread, the task is called with
// that error on the thread of the deadlines. Thread-safe. Never destroyed, since detached threads may outlive static
// destructors.
class Executor {
 public:
  // If `started` is an error, the task does not have a separate thread and must return quickly.
  using Task = std::function<void(const absl::Status& started)>;

  static Executor& Global() { return NeverDestroyed<Executor>(); }

  void Run(Task task) ABSL_LOCKS_EXCLUDED(mutex_);

  // Makes this thread of the executor run another task right after its current one.
  static void RunAfterThis(Task task);

  // Makes this thread spin up to `limit` after its task, so that it takes the next one without being woken. At least
  // one core stays free.
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
  std::size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;     // The number of threads that wait for a task.
  std::size_t unfinished_ ABSL_GUARDED_BY(mutex_) = 0;  // The number of tasks that run or are queued.

  // Written with mutex_ held; read without it while spinning.
  std::atomic<std::size_t> ready_{0};     // The size of tasks_.
  std::atomic<std::size_t> spinning_{0};  // The number of waiting threads that are awake.
};

}  // namespace tensorflow_ipu::core
