// Helpers for tests with threads. Every wait has a deadline, so that a missing event fails a check.
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tensorflow_ipu/kernels/support/waiting.h"

namespace check {

// Long enough for a sanitizer on a busy machine.
constexpr std::chrono::seconds kDeadline{120};

// Long enough to observe most events that must not happen.
constexpr std::chrono::milliseconds kMoment{20};

// A thread-safe counter that threads can wait for.
class Count {
 public:
  void Add(int64_t change = 1) {
    std::lock_guard<std::mutex> lock(mutex_);
    value_ += change;
    changed_.notify_all();
  }

  int64_t value() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return value_;
  }

  bool Await(int64_t target = 1, std::chrono::nanoseconds limit = kDeadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return value_ >= target; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t value_ = 0;
};

// Returns an object for the captures of a callback. `gone` is incremented when the object is destroyed.
inline std::shared_ptr<void> Held(Count& gone) {
  return std::shared_ptr<void>(nullptr, [&gone](void*) { gone.Add(); });
}

// Tries until the condition is true, for events without a notification.
template <typename Condition>
bool Becomes(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Sets the limit of waits that begin while it exists.
class WaitLimit {
 public:
  explicit WaitLimit(std::chrono::nanoseconds limit) { tensorflow_ipu::core::wait_limit_ns = limit.count(); }
  ~WaitLimit() { tensorflow_ipu::core::wait_limit_ns = 0; }
};

// Makes all feeds and call sites reject calls while it exists, as after Ctrl-C.
class Interrupted {
 public:
  Interrupted() { tensorflow_ipu::core::Interrupt(); }
  ~Interrupted() { tensorflow_ipu::core::interrupted = false; }
};

class Threads {
 public:
  ~Threads() {
    for (std::thread& thread : threads_) thread.join();
  }

  template <typename Body>
  void Start(Body body) {
    threads_.emplace_back(std::move(body));
  }

 private:
  std::vector<std::thread> threads_;
};

// Calls `body(0)`, `body(1)` and so on, each on a separate thread.
template <typename Body>
void OnThreads(int count, Body body) {
  Threads threads;
  for (int i = 0; i < count; ++i) threads.Start([&body, i] { body(i); });
}

// While it exists, the process cannot start threads, because each would get a stack larger than the address space.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_getattr_default_np(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 48);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }

  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace check
