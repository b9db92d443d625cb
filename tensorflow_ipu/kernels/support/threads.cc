#include "tensorflow_ipu/kernels/support/threads.h"

#include <pthread.h>

#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "tensorflow_ipu/kernels/support/tuning.h"
#include "tensorflow_ipu/kernels/support/waiting.h"

namespace tensorflow_ipu::core {

namespace {

absl::Status NoThread(const char* name, const std::system_error& error) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "The system gives this process no further thread (`", name, "`: ", error.what(),
      "). Raise the limit (`ulimit -u`, the container's `pids` limit, or memory where that is limited), or use fewer "
      "replicas, queues and threads at once."));
}

}  // namespace

absl::Status StartThread(const char* name, std::function<void()> work) {
  try {
    std::thread([name, work = std::move(work)]() mutable {
      pthread_setname_np(pthread_self(), name);  // Otherwise it has the name of the thread that started it.
      work();
      work = nullptr;
    }).detach();
  } catch (const std::system_error& error) {
    return NoThread(name, error);
  }
  return absl::OkStatus();
}

absl::Status TryThreads(const char* name, int count) {
  absl::Status status;
  absl::Notification all_begun;
  std::vector<std::thread> threads;
  threads.reserve(count);
  try {
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([name, &all_begun] {
        pthread_setname_np(pthread_self(), name);
        all_begun.WaitForNotification();
      });
    }
  } catch (const std::system_error& error) {
    status = NoThread(name, error);
  }
  all_begun.Notify();
  for (std::thread& thread : threads) thread.join();  // Until then the system counts them.
  return status;
}

absl::Status Deadlines::Prepare() {
  const absl::MutexLock lock(&mutex_);
  return Start();
}

absl::Status Deadlines::Start() {
  if (started_) return absl::OkStatus();
  absl::Status started = StartThread("ipu-deadlines", [this] { Work(); });
  started_ = started.ok();
  return started;
}

Deadlines::Ticket Deadlines::Add(Clock::time_point when, std::function<void()> due) {
  const absl::MutexLock lock(&mutex_);
  const Ticket ticket(when, next_++);
  calls_.emplace(ticket, std::move(due));
  static_cast<void>(Start());  // The next deadline tries again.
  changed_.Signal();
  return ticket;
}

void Deadlines::Remove(const Ticket& ticket) {
  std::map<Ticket, std::function<void()>>::node_type
      removed;  // Destroyed after the lock: its captures may use the deadlines.
  const absl::MutexLock lock(&mutex_);
  removed = calls_.extract(ticket);
}

void Deadlines::Work() {
  mutex_.Lock();
  while (true) {
    const auto remaining = calls_.empty() ? Clock::duration::max() : calls_.begin()->first.first - Clock::now();
    if (remaining.count() > 0) {
      changed_.WaitWithTimeout(&mutex_, absl::FromChrono(remaining));
      continue;
    }
    auto due = calls_.extract(calls_.begin());
    mutex_.Unlock();
    due.mapped()();
    due = {};
    mutex_.Lock();
  }
}

namespace {
thread_local std::deque<Executor::Task> after_this;
thread_local std::chrono::nanoseconds spin_limit{0};

// Flushes subnormal values to zero like TensorFlow's threads, on which programs begin: results must not depend on the
// thread.
void FlushSubnormalFloats() {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#elif defined(__aarch64__)
  uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("msr fpcr, %0" : : "r"(control | uint64_t{1} << 24));
#endif
}

}  // namespace

void Executor::Run(Task task) {
  bool idle_thread = false;
  {
    const absl::MutexLock lock(&mutex_);
    tasks_.push_back(std::move(task));
    ++ready_;
    ++unfinished_;
    if (spinning_ >= tasks_.size()) return;
    idle_thread = waiting_ >= tasks_.size();
  }
  if (idle_thread) {
    tasks_ready_.Signal();  // Without the lock, which the woken thread acquires first.
    return;
  }
  absl::Status started = StartThread("ipu-program", [this] { Work(); });
  if (!started.ok()) Refuse(std::move(started));
}

// Fails a task on another thread, because this one may hold locks that a failing program needs.
void Executor::Refuse(absl::Status why) {
  Task task;
  {
    const absl::MutexLock lock(&mutex_);
    if (waiting_ >= tasks_.size()) {
      tasks_ready_.Signal();
      return;
    }
    task = std::move(tasks_.back());
    tasks_.pop_back();
    --ready_;
  }
  Deadlines::Global().Add(Deadlines::Clock::now(), [this, task = std::move(task), why = std::move(why)] {
    task(why);
    const absl::MutexLock lock(&mutex_);
    --unfinished_;
  });
}

void Executor::RunAfterThis(Task task) { after_this.push_back(std::move(task)); }

void Executor::SpinAfterTask(std::chrono::nanoseconds limit) { spin_limit = limit; }

void Executor::AwaitSpinningThread(std::chrono::nanoseconds limit) const {
  SpinUntil(limit, [this] { return spinning_ > 0; });
}

void Executor::Work() {
  FlushSubnormalFloats();
  mutex_.Lock();
  while (true) {
    ++waiting_;
    if (MaySpin()) {
      ++spinning_;
      mutex_.Unlock();
      SpinForTask();
      mutex_.Lock();
      --spinning_;
    }
    bool idle = false;
    while (tasks_.empty() && !idle) idle = tasks_ready_.WaitWithTimeout(&mutex_, absl::FromChrono(kIdleThread));
    --waiting_;
    if (tasks_.empty()) break;
    after_this.push_back(std::move(tasks_.front()));
    tasks_.pop_front();
    --ready_;
    mutex_.Unlock();
    spin_limit = std::chrono::nanoseconds(0);
    while (!after_this.empty()) {
      const Task task = std::move(after_this.front());
      after_this.pop_front();
      task(absl::OkStatus());
    }
    mutex_.Lock();
    --unfinished_;
  }
  mutex_.Unlock();
}

bool Executor::MaySpin() const {
  return spin_limit.count() > 0 && ready_ == 0 && spinning_ + 1 < std::thread::hardware_concurrency();
}

void Executor::SpinForTask() const {
  const auto end = std::chrono::steady_clock::now() + spin_limit;
  while (ready_ == 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

bool Executor::AwaitIdle(std::chrono::nanoseconds limit) {
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return unfinished_ == 0; };
  const absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&idle), absl::FromChrono(limit));
}

}  // namespace tensorflow_ipu::core
