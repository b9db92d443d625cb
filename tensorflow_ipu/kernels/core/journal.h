#ifndef TENSORFLOW_IPU_KERNELS_CORE_JOURNAL_H_
#define TENSORFLOW_IPU_KERNELS_CORE_JOURNAL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu::core {

// Log messages of native threads, which may not call Python. Python takes them when it logs. Thread-safe.
class Journal {
 public:
  struct Line {
    int64_t when;
    std::string text;
  };

  static constexpr std::size_t kKept = 256;

  // Never destroyed: pumps may outlive static destructors.
  static Journal& Global() {
    static auto* const journal = new Journal();
    return *journal;
  }

  // Drops the oldest line when full.
  void Note(std::string text) IPU_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    if (lines_.size() == kKept) lines_.pop_front();
    lines_.push_back({std::chrono::steady_clock::now().time_since_epoch().count(), std::move(text)});
  }

  std::deque<Line> Take() IPU_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  Mutex mutex_;
  std::deque<Line> lines_ IPU_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_JOURNAL_H_
