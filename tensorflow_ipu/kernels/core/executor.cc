#include "tensorflow_ipu/kernels/core/executor.h"

#include <pthread.h>

#include <chrono>
#include <thread>
#include <utility>

namespace tensorflow_ipu::core {

namespace {
constexpr std::chrono::seconds kIdle{2};

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

void Executor::Run(std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    ++unfinished_;
    if (waiting_ >= tasks_.size()) {
      tasks_ready_.notify_one();
      return;
    }
  }
  std::thread([this] { Work(); }).detach();
}

void Executor::Work() {
  pthread_setname_np(pthread_self(), "ipu-program");  // Else it bears the name of the thread that started it.
  FlushSubnormalFloats();
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    ++waiting_;
    const bool found = tasks_ready_.wait_for(lock, kIdle, [this] { return !tasks_.empty(); });
    --waiting_;
    if (!found) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // What it holds goes now, not while this thread idles.
    lock.lock();
    if (--unfinished_ == 0) idle_.notify_all();
  }
}

bool Executor::AwaitIdle(std::chrono::nanoseconds limit) {
  std::unique_lock<std::mutex> lock(mutex_);
  return idle_.wait_for(lock, limit, [this] { return unfinished_ == 0; });
}

}  // namespace tensorflow_ipu::core
