// A pool of threads on which programs go on after a wait. It grows to as many threads as there are tasks at once.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_EXECUTOR_H_
#define TENSORFLOW_IPU_KERNELS_CORE_EXECUTOR_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>

#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/outcome.h"

namespace tensorflow_ipu::core {

// A task may run for long (it can be the rest of a training loop), so no task is queued behind another: one that finds
// no idle thread gets a new one. Where the system gives none, the task is called with that as its outcome, on the
// thread of the deadlines, and fails what it was to do. A thread ends after two idle seconds.
//
// Thread-safe. The one instance is never destroyed, since a detached thread may outlive static destructors.
class Executor {
 public:
  // `started` is Ok where the task has a thread of the pool; else it says why not, and the task must be short.
  using Task = std::function<void(const Outcome& started)>;

  static Executor& Global();

  void Run(Task task) IPU_EXCLUDES(mutex_);

  // Has this thread run another task when its own is done, before it takes a new one. Only on a thread of the executor.
  static void RunAfterThis(Task task);

  // Has this thread spin for so long, once its task is done, to take the next one without a wake. At most as many
  // threads spin at once as there are cores, but for one.
  static void SpinAfterTask(std::chrono::nanoseconds limit);

  // Spins until a thread spins for a task, `limit` at the longest.
  void AwaitSpinningThread(std::chrono::nanoseconds limit) const;

  // Waits until no task runs or is to run, at most so long. Returns whether none is.
  bool AwaitIdle(std::chrono::nanoseconds limit) IPU_EXCLUDES(mutex_);

 private:
  void Work() IPU_EXCLUDES(mutex_);
  void Refuse(Outcome why) IPU_EXCLUDES(mutex_);
  void Finish() IPU_REQUIRES(mutex_);

  // Whether this thread is to spin for its next task, and does so.
  bool MaySpin() const IPU_REQUIRES(mutex_);
  void SpinForTask() const IPU_EXCLUDES(mutex_);

  Mutex mutex_;
  Condition tasks_ready_;
  std::deque<Task> tasks_ IPU_GUARDED_BY(mutex_);
  std::size_t waiting_ IPU_GUARDED_BY(mutex_) = 0;  // Threads that wait for a task.
  Condition idle_;
  std::size_t unfinished_ IPU_GUARDED_BY(mutex_) = 0;  // Tasks that run or are to run.

  // Written with mutex_ held; read without it by those who spin.
  std::atomic<std::size_t> ready_{0};     // How many tasks_ there are.
  std::atomic<std::size_t> spinning_{0};  // Threads that wait for a task and are awake.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_EXECUTOR_H_
