// Threads on which programs go on after a wait: as many as there are programs to resume at once, kept for the next.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_EXECUTOR_H_
#define TENSORFLOW_IPU_KERNELS_CORE_EXECUTOR_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

#include "tensorflow_ipu/kernels/core/outcome.h"

namespace tensorflow_ipu::core {

// A task may run for long (it can be the rest of a training loop), so no task ever waits behind another: one that finds
// no idle thread gets a new one. Where the system gives none, the task learns that, on the thread of the deadlines, and
// fails what it was to do. A thread that stays idle for two seconds ends.
//
// Thread-safe. The one instance is never destroyed, since a detached thread may outlive static destructors.
class Executor {
 public:
  // `started` is Ok where the task has a thread for as long as it likes; else it says why not, and the task must be
  // short.
  using Task = std::function<void(const Outcome& started)>;

  static Executor& Global();

  void Run(Task task);

  // Has this thread run another task when its own is done, before it takes a new one. Only on a thread of the executor.
  static void RunAfterThis(Task task);

  // Has this thread stay awake for so long, once its task is done, to take the next one without a wake. Of threads that
  // are idle together, as many stay awake as there are cores, but for one.
  static void LingerAfterTask(std::chrono::nanoseconds limit);

  // Waits without sleep until a thread stays awake like that, `limit` at the longest.
  void AwaitLingerer(std::chrono::nanoseconds limit) const;

  // Waits until no task runs or is to run, at most so long. Returns whether none is.
  bool AwaitIdle(std::chrono::nanoseconds limit);

 private:
  void Work();
  void Refuse(Outcome why);
  void FinishLocked();
  void Linger(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable tasks_ready_;
  std::deque<Task> tasks_;   // Guarded by mutex_.
  std::size_t waiting_ = 0;  // Guarded by mutex_: threads that wait for a task.
  std::condition_variable idle_;
  std::size_t unfinished_ = 0;  // Guarded by mutex_: tasks that run or are to run.

  // Written with mutex_ held.
  std::atomic<std::size_t> ready_{0};      // How many tasks_ there are.
  std::atomic<std::size_t> lingering_{0};  // Threads that wait for a task and are awake.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_EXECUTOR_H_
