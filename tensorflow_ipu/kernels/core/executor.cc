#include "tensorflow_ipu/kernels/core/executor.h"

#include <chrono>
#include <thread>
#include <utility>

#include "tensorflow_ipu/kernels/core/deadlines.h"
#include "tensorflow_ipu/kernels/core/threads.h"
#include "tensorflow_ipu/kernels/core/waiting.h"

namespace tensorflow_ipu::core {

namespace {
constexpr std::chrono::seconds kIdle{2};

thread_local std::deque<Executor::Task> after_this;
thread_local std::chrono::nanoseconds linger{0};

// As TensorFlow's threads do, on which a program begins: its results must not depend on where it goes on.
void FlushSubnormalFloats() {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#endif
}

}  // namespace

Executor& Executor::Global() {
  static Executor* const executor = new Executor();
  return *executor;
}

void Executor::Run(Task task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    ++ready_;
    ++unfinished_;
    if (lingering_ >= tasks_.size()) return;
    if (waiting_ >= tasks_.size()) {
      tasks_ready_.notify_one();
      return;
    }
  }
  Outcome started = StartThread("ipu-program", [this] { Work(); });
  if (!started.ok()) Refuse(std::move(started));
}

// Off this thread, which may hold locks that a failing program needs.
void Executor::Refuse(Outcome why) {
  Task task;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (waiting_ >= tasks_.size()) {  // Threads have become idle meanwhile.
      tasks_ready_.notify_one();
      return;
    }
    task = std::move(tasks_.back());
    tasks_.pop_back();
    --ready_;
  }
  Deadlines::Global().Add(Deadlines::Clock::now(), [this, task = std::move(task), why = std::move(why)] {
    task(why);
    std::lock_guard<std::mutex> lock(mutex_);
    FinishLocked();
  });
}

void Executor::FinishLocked() {
  if (--unfinished_ == 0) idle_.notify_all();
}

void Executor::RunAfterThis(Task task) { after_this.push_back(std::move(task)); }

void Executor::LingerAfterTask(std::chrono::nanoseconds limit) { linger = limit; }

void Executor::AwaitLingerer(std::chrono::nanoseconds limit) const {
  SpinUntil(limit, [this] { return lingering_ > 0; });
}

void Executor::Work() {
  FlushSubnormalFloats();
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    ++waiting_;
    Linger(lock);
    const bool found = tasks_ready_.wait_for(lock, kIdle, [this] { return !tasks_.empty(); });
    --waiting_;
    if (!found) return;
    after_this.push_back(std::move(tasks_.front()));
    tasks_.pop_front();
    --ready_;
    lock.unlock();
    linger = std::chrono::nanoseconds(0);
    while (!after_this.empty()) {
      const Task task = std::move(after_this.front());
      after_this.pop_front();
      task(Outcome::Ok());
    }
    lock.lock();
    FinishLocked();
  }
}

void Executor::Linger(std::unique_lock<std::mutex>& lock) {
  if (linger.count() == 0 || ready_ > 0 || lingering_ + 1 >= std::thread::hardware_concurrency()) return;
  ++lingering_;
  lock.unlock();
  const auto end = std::chrono::steady_clock::now() + linger;
  // Whoever else wants this core may have it.
  while (ready_ == 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  lock.lock();
  --lingering_;
}

bool Executor::AwaitIdle(std::chrono::nanoseconds limit) {
  std::unique_lock<std::mutex> lock(mutex_);
  return idle_.wait_for(lock, limit, [this] { return unfinished_ == 0; });
}

}  // namespace tensorflow_ipu::core
