// Measured times of one kind.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_SAMPLES_H_
#define TENSORFLOW_IPU_KERNELS_CORE_SAMPLES_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu::core {

// Thread-safe. Threads share its locks, so it is for code that has waited anyway.
class Samples {
 public:
  using Clock = std::chrono::steady_clock;

  // In nanoseconds.
  struct Sample {
    int64_t end;  // Of the monotonic clock.
    int64_t duration;
  };
  struct Summary {
    int64_t count = 0;
    int64_t total = 0;
    std::vector<Sample> latest;  // The latest last.
  };

  static constexpr std::size_t kKept = 16384;

  void Add(Clock::time_point end, std::chrono::nanoseconds duration) {
    Part& own = parts_[OfThread()];
    const Lock lock(own.mutex);
    Note(own, {end.time_since_epoch().count(), duration.count()});
  }

  void AddAll(Clock::time_point end, const std::vector<Clock::time_point>& begins) {
    Part& own = parts_[OfThread()];
    const Lock lock(own.mutex);
    for (const Clock::time_point begin : begins) Note(own, {end.time_since_epoch().count(), (end - begin).count()});
  }

  Summary Read(int64_t most = kKept) const {
    Summary all;
    for (const Part& part : parts_) {
      const Lock lock(part.mutex);
      all.count += part.noted.count;
      all.total += part.noted.total;
      if (most > 0) all.latest.insert(all.latest.end(), part.noted.latest.begin(), part.noted.latest.end());
    }
    std::sort(all.latest.begin(), all.latest.end(), [](const Sample& a, const Sample& b) { return a.end < b.end; });
    const auto left = static_cast<std::ptrdiff_t>(std::clamp<int64_t>(most, 0, kKept));
    const auto size = static_cast<std::ptrdiff_t>(all.latest.size());
    if (size > left) all.latest.erase(all.latest.begin(), all.latest.end() - left);
    return all;
  }

 private:
  // Threads are spread over parts, so that they do not contend for one lock.
  struct alignas(64) Part {
    mutable Mutex mutex;
    Summary noted IPU_GUARDED_BY(mutex);  // `latest` is a ring once it is full.
  };
  static constexpr std::size_t kParts = 16;

  static void Note(Part& part, const Sample& sample) IPU_REQUIRES(part.mutex) {
    if (part.noted.latest.size() < kKept) {
      part.noted.latest.push_back(sample);
    } else {
      part.noted.latest[static_cast<std::size_t>(part.noted.count) % kKept] = sample;
    }
    ++part.noted.count;
    part.noted.total += sample.duration;
  }

  static std::size_t OfThread() {
    static std::atomic<std::size_t> threads{0};
    static thread_local const std::size_t own = threads.fetch_add(1, std::memory_order_relaxed) % kParts;
    return own;
  }

  std::array<Part, kParts> parts_;
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_SAMPLES_H_
