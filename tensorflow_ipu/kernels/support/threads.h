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

#include "tensorflow_ipu/kernels/support/mutex.h"
#include "tensorflow_ipu/kernels/support/status.h"

namespace tensorflow_ipu::core {

// Runs `work` on a detached thread of this name (15 letters at most). kResourceExhausted: the system has no thread.
Status StartThread(const char* name, std::function<void()> work);

// Whether the process can start `count` more threads now, for code that would abort without them.
Status TryThreads(const char* name, int count);

// Due calls run on the one thread of the timers and must be short. Thread-safe. Never destroyed, since its thread may
// outlive static destructors.
class Deadlines {
 public:
  using Clock = std::chrono::steady_clock;
  using Ticket = std::pair<Clock::time_point, int64_t>;

  static Deadlines& Global() { return NeverDestroyed<Deadlines>(); }

  // Starts the thread, before the process runs out of threads.
  Status Prepare() IPU_EXCLUDES(mutex_);

  Ticket Add(Clock::time_point when, std::function<void()> due) IPU_EXCLUDES(mutex_);

  void Remove(const Ticket& ticket) IPU_EXCLUDES(mutex_);

 private:
  Status Start() IPU_REQUIRES(mutex_);
  void Work() IPU_EXCLUDES(mutex_);

  Mutex mutex_;
  Condition changed_;
  std::map<Ticket, std::function<void()>> calls_ IPU_GUARDED_BY(mutex_);
  int64_t next_ IPU_GUARDED_BY(mutex_) = 0;
  bool started_ IPU_GUARDED_BY(mutex_) = false;
};

// A task may run for long (it can be the rest of a training loop), so no task waits for another one: the pool
// starts a thread for it. If the system has no thread, the task is called with that status on the thread of the
// deadlines. Thread-safe. Never destroyed, since detached threads may outlive static destructors.
class Executor {
 public:
  // If `started` is an error, the task has no thread of its own and must be short.
  using Task = std::function<void(const Status& started)>;

  static Executor& Global() { return NeverDestroyed<Executor>(); }

  void Run(Task task) IPU_EXCLUDES(mutex_);

  // Has this thread of the executor run another task right after its own.
  static void RunAfterThis(Task task);

  // Has this thread spin so long after its task to take the next one without a wake. One core at least stays free.
  static void SpinAfterTask(std::chrono::nanoseconds limit);

  void AwaitSpinningThread(std::chrono::nanoseconds limit) const;

  // Waits until no task runs or is queued. Returns false after `limit`.
  bool AwaitIdle(std::chrono::nanoseconds limit) IPU_EXCLUDES(mutex_);

 private:
  void Work() IPU_EXCLUDES(mutex_);
  void Refuse(Status why) IPU_EXCLUDES(mutex_);
  void Finish() IPU_REQUIRES(mutex_);

  bool MaySpin() const IPU_REQUIRES(mutex_);
  void SpinForTask() const IPU_EXCLUDES(mutex_);

  Mutex mutex_;
  Condition tasks_ready_;
  std::deque<Task> tasks_ IPU_GUARDED_BY(mutex_);
  std::size_t waiting_ IPU_GUARDED_BY(mutex_) = 0;  // Threads that wait for a task.
  Condition idle_;
  std::size_t unfinished_ IPU_GUARDED_BY(mutex_) = 0;  // Tasks that run or are queued.

  // Written with mutex_ held; read without it while spinning.
  std::atomic<std::size_t> ready_{0};     // The size of tasks_.
  std::atomic<std::size_t> spinning_{0};  // Of the waiting threads, those that are awake.
};

}  // namespace tensorflow_ipu::core
