// Objects by number, so that a program can name one by a value.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_REGISTRY_H_
#define TENSORFLOW_IPU_KERNELS_CORE_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tensorflow_ipu::core {

// No number is used twice in a process, whatever the kind of the object, so a stale or wrong number finds nothing
// instead of a stranger.
inline std::atomic<int64_t> last_number{0};

// Counts objects that were removed, here or by whoever keeps something in the place of another: see Latest.
inline std::atomic<int64_t> removals{0};

// Thread-safe.
template <typename T>
class Registry {
 public:
  int64_t Add(std::shared_ptr<T> object) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    const int64_t number = ++last_number;
    objects_.emplace(number, std::move(object));
    return number;
  }

  // Null where there is none (any more).
  std::shared_ptr<T> Find(int64_t number) const {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    const auto found = objects_.find(number);
    return found == objects_.end() ? nullptr : found->second;
  }

  // Returns what was there; null where there was none.
  std::shared_ptr<T> Remove(int64_t number) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    const auto found = objects_.find(number);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    ++removals;
    return object;
  }

  std::vector<std::shared_ptr<T>> All() const {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    std::vector<std::shared_ptr<T>> all;
    all.reserve(objects_.size());
    for (const auto& entry : objects_) all.push_back(entry.second);
    return all;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<int64_t, std::shared_ptr<T>> objects_;  // Guarded by mutex_.
};

// What a thread found last: a program asks for the same object thousands of times on end. Holds on to it until the
// thread looks for another one, or for anything after a removal.
//
// One thread's.
template <typename T>
class Latest {
 public:
  // The object of this number: the one at hand, or what `find` returns. Null where there is none.
  template <typename Find>
  T* Of(int64_t number, Find find) {
    const int64_t removed = removals.load(std::memory_order_acquire);
    if (number != number_ || removed != removals_ || object_ == nullptr) {
      object_ = find(number);
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
