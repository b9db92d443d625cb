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

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_REGISTRY_H_
