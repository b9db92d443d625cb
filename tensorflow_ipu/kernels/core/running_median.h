#ifndef TENSORFLOW_IPU_KERNELS_CORE_RUNNING_MEDIAN_H_
#define TENSORFLOW_IPU_KERNELS_CORE_RUNNING_MEDIAN_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

namespace tensorflow_ipu::core {

// A running median of times. Each time moves it by at most an eighth, so that single long times (of a thread that lost
// its core) do not count. Thread-safe; concurrent notes may count once.
class RunningMedian {
 public:
  // The largest number before the first time.
  int64_t nanoseconds() const { return nanoseconds_.load(std::memory_order_relaxed); }

  void Note(int64_t nanoseconds) {
    const int64_t before = this->nanoseconds();
    const int64_t step = before / 8 + 100;
    const int64_t after = before == kUnknown ? nanoseconds : before + std::clamp(nanoseconds - before, -step, step);
    nanoseconds_.store(after, std::memory_order_relaxed);
  }

 private:
  static constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

  std::atomic<int64_t> nanoseconds_{kUnknown};
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_RUNNING_MEDIAN_H_
