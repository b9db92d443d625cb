#ifndef TENSORFLOW_IPU_KERNELS_CORE_COUNTERS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_COUNTERS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu::core {

// Named counters. Thread-safe; a counter needs no lock once it was found.
class Counters {
 public:
  std::atomic<int64_t>* Of(const std::string& name) IPU_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    return &counters_[name];  // Nodes of a map stay where they are.
  }

  std::map<std::string, int64_t> Read() const IPU_EXCLUDES(mutex_) {
    std::map<std::string, int64_t> values;
    const Lock lock(mutex_);
    for (const auto& [name, counter] : counters_) values[name] = counter.load(std::memory_order_relaxed);
    return values;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::atomic<int64_t>> counters_ IPU_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_COUNTERS_H_
