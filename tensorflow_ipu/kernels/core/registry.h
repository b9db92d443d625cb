// Objects by number, so that a program can name one by a value.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_REGISTRY_H_
#define TENSORFLOW_IPU_KERNELS_CORE_REGISTRY_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu::core {

// No number is used twice in a process, whatever the kind of the object, so a stale or wrong number finds nothing
// instead of a stranger.
inline std::atomic<int64_t> last_number{0};

// Counts objects that were removed, here or by whoever keeps something in the place of another: see LookupCache.
inline std::atomic<int64_t> removals{0};

// Thread-safe.
template <typename T>
class Registry {
 public:
  int64_t Add(std::shared_ptr<T> object) {
    const Lock lock(mutex_);
    const int64_t number = ++last_number;
    objects_.emplace(number, std::move(object));
    return number;
  }

  // Null where there is none (any more).
  std::shared_ptr<T> Find(int64_t number) const {
    const Lock lock(mutex_);
    const auto found = objects_.find(number);
    return found == objects_.end() ? nullptr : found->second;
  }

  // Returns what was there; null where there was none.
  std::shared_ptr<T> Remove(int64_t number) {
    const Lock lock(mutex_);
    const auto found = objects_.find(number);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    ++removals;
    return object;
  }

  // All objects with their numbers, in the order of these.
  std::vector<std::pair<int64_t, std::shared_ptr<T>>> Entries() const {
    std::vector<std::pair<int64_t, std::shared_ptr<T>>> entries;
    {
      const Lock lock(mutex_);
      entries.assign(objects_.begin(), objects_.end());
    }
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    return entries;
  }

  std::vector<std::shared_ptr<T>> All() const {
    const Lock lock(mutex_);
    std::vector<std::shared_ptr<T>> all;
    all.reserve(objects_.size());
    for (const auto& entry : objects_) all.push_back(entry.second);
    return all;
  }

 private:
  mutable Mutex mutex_;
  std::unordered_map<int64_t, std::shared_ptr<T>> objects_ IPU_GUARDED_BY(mutex_);
};

// A cache of one entry for look-ups in a registry: a program asks for the same object thousands of times on end. Keeps
// the object until another one is looked up, or anything after a removal.
//
// One thread's.
template <typename T>
class LookupCache {
 public:
  // The object of this number: the cached one, or what `find` returns. Null where there is none.
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

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_REGISTRY_H_
