// Shared objects of the process, and locks with annotations for clang's thread-safety analysis, which `make lint` runs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#if defined(__clang__)
#define IPU_ANNOTATION(attribute) __attribute__((attribute))
#else
#define IPU_ANNOTATION(attribute)
#endif
#define IPU_CAPABILITY IPU_ANNOTATION(capability("mutex"))
#define IPU_SCOPED_CAPABILITY IPU_ANNOTATION(scoped_lockable)
#define IPU_GUARDED_BY(mutex) IPU_ANNOTATION(guarded_by(mutex))
#define IPU_REQUIRES(...) IPU_ANNOTATION(requires_capability(__VA_ARGS__))
#define IPU_EXCLUDES(...) IPU_ANNOTATION(locks_excluded(__VA_ARGS__))
#define IPU_ACQUIRE(...) IPU_ANNOTATION(acquire_capability(__VA_ARGS__))
#define IPU_RELEASE(...) IPU_ANNOTATION(release_capability(__VA_ARGS__))
#define IPU_ASSERT_HELD(...) IPU_ANNOTATION(assert_capability(__VA_ARGS__))

namespace tensorflow_ipu::core {

// The process's object of a type. It is never destroyed, since threads may outlive static destructors.
template <typename T>
T& NeverDestroyed() {
  static T* const object = new T();
  return *object;
}

class IPU_CAPABILITY Mutex {
 public:
  // Tells the analysis that the caller holds this mutex under another name.
  void AssertHeld() const IPU_ASSERT_HELD(this) {}

 private:
  friend class Lock;

  std::mutex mutex_;
};

class IPU_SCOPED_CAPABILITY Lock {
 public:
  explicit Lock(Mutex& mutex) IPU_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~Lock() IPU_RELEASE() {}

  void Unlock() IPU_RELEASE() { lock_.unlock(); }
  void Relock() IPU_ACQUIRE() { lock_.lock(); }

 private:
  friend class Condition;

  std::unique_lock<std::mutex> lock_;
};

// `holds` is a lambda that is annotated to require the mutex.
class Condition {
 public:
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

  void Wait(Lock& lock) { condition_.wait(lock.lock_); }

  template <typename Holds>
  void Wait(Lock& lock, Holds holds) {
    condition_.wait(lock.lock_, std::move(holds));
  }

  template <typename Holds>
  bool WaitFor(Lock& lock, std::chrono::nanoseconds limit, Holds holds) {
    return condition_.wait_for(lock.lock_, limit, std::move(holds));
  }

  void WaitUntil(Lock& lock, std::chrono::steady_clock::time_point when) { condition_.wait_until(lock.lock_, when); }

 private:
  std::condition_variable condition_;
};

}  // namespace tensorflow_ipu::core
