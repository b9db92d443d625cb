// Measured times of one kind: how many there were, what they add up to, and the latest of them.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_SAMPLES_H_
#define TENSORFLOW_IPU_KERNELS_CORE_SAMPLES_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu::core {

// Thread-safe. It takes a lock, so it is for what has waited anyway.
class Samples {
 public:
  using Clock = std::chrono::steady_clock;

  // All in nanoseconds.
  struct Sample {
    int64_t end;  // Of the monotonic clock.
    int64_t duration;
  };
  struct Summary {
    int64_t count = 0;
    int64_t total = 0;
    std::vector<Sample> latest;  // kKept at most, the latest last.
  };

  static constexpr std::size_t kKept = 16384;

  // Notes a time that ended then.
  void Add(Clock::time_point end, std::chrono::nanoseconds duration) IPU_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    if (summary_.latest.size() < kKept) summary_.latest.resize(kKept);
    summary_.latest[static_cast<std::size_t>(summary_.count) % kKept] = {end.time_since_epoch().count(),
                                                                         duration.count()};
    ++summary_.count;
    summary_.total += duration.count();
  }

  // With so many of the latest at most.
  Summary Read(int64_t most = kKept) const IPU_EXCLUDES(mutex_) {
    Summary summary;
    const Lock lock(mutex_);
    summary.count = summary_.count;
    summary.total = summary_.total;
    most = std::clamp<int64_t>(most, 0, std::min<int64_t>(summary.count, kKept));
    summary.latest.reserve(static_cast<std::size_t>(most));
    for (int64_t i = summary.count - most; i < summary.count; ++i) {
      summary.latest.push_back(summary_.latest[static_cast<std::size_t>(i) % kKept]);
    }
    return summary;
  }

 private:
  mutable Mutex mutex_;
  Summary summary_ IPU_GUARDED_BY(mutex_);  // Its latest are a ring.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_SAMPLES_H_
