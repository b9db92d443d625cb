// Helpers for tests with threads. Every wait has a deadline, so that a missing event fails a check.
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace check {

// Long enough for a sanitizer on a busy machine.
constexpr std::chrono::seconds kDeadline{120};

// Long enough for most events that must not happen.
constexpr std::chrono::milliseconds kMoment{20};

// A thread-safe number that threads raise and wait for.
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

  bool Await(int64_t wanted = 1, std::chrono::nanoseconds limit = kDeadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return value_ >= wanted; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t value_ = 0;
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

// While it lives, the system gives the process no thread: each would get a stack larger than all addresses.
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
