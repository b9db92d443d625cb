// Registries of objects by number, so that programs can refer to them.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tensorflow_ipu::core {

// Numbers are unique in a process, so a stale number finds no object.
inline std::atomic<int64_t> last_number{0};

// Counts removals of objects, which invalidate each LookupCache.
inline std::atomic<int64_t> removals{0};

// Objects by number. Thread-safe.
template <typename T>
class Registry {
 public:
  int64_t Add(std::shared_ptr<T> object) {
    const absl::MutexLock lock(&mutex_);
    const int64_t number = ++last_number;
    objects_.emplace(number, std::move(object));
    return number;
  }

  std::shared_ptr<T> Find(int64_t number) const {
    const absl::MutexLock lock(&mutex_);
    const auto found = objects_.find(number);
    return found == objects_.end() ? nullptr : found->second;
  }

  std::shared_ptr<T> Remove(int64_t number) {
    const absl::MutexLock lock(&mutex_);
    const auto found = objects_.find(number);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    ++removals;
    return object;
  }

  // Returns the object with a number that other code has assigned, such as the number of a device. Creates the object
  // at its first use.
  template <typename Make>
  std::shared_ptr<T> Of(int64_t number, Make make) {
    const absl::MutexLock lock(&mutex_);
    std::shared_ptr<T>& object = objects_[number];
    if (object == nullptr) object = make();
    return object;
  }

  std::map<int64_t, std::shared_ptr<T>> Entries() const {
    const absl::MutexLock lock(&mutex_);
    return objects_;
  }

  std::vector<std::shared_ptr<T>> All() const {
    std::vector<std::shared_ptr<T>> all;
    for (const auto& [number, object] : Entries()) all.push_back(object);
    return all;
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<int64_t, std::shared_ptr<T>> objects_ ABSL_GUARDED_BY(mutex_);
};

// Caches the last look-up of a thread until an object is removed, since programs look up the same object thousands of
// times.
template <typename T>
class LookupCache {
 public:
  template <typename Lookup>
  T* Find(int64_t number, Lookup look_up) {
    const int64_t removed = removals.load(std::memory_order_acquire);
    if (number != number_ || removed != removals_ || object_ == nullptr) {
      object_ = look_up(number);
      number_ = number;
      removals_ = removed;
    }
    return object_.get();
  }

  const std::shared_ptr<T>& object() const { return object_; }

 private:
  int64_t number_ = 0;
  int64_t removals_ = 0;
  std::shared_ptr<T> object_;
};

// Returns the calling thread's object of a type. A thread-local variable with a destructor would check its guard at
// each use; a plain pointer needs one look-up.
template <typename T>
T& OfThread() {
  static thread_local T* cached = nullptr;
  if (cached == nullptr) {
    static thread_local T object;
    cached = &object;
  }
  return *cached;
}

}  // namespace tensorflow_ipu::core
