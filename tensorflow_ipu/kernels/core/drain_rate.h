// How fast a queue is emptied, as the thread that fills it sees it.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_DRAIN_RATE_H_
#define TENSORFLOW_IPU_KERNELS_CORE_DRAIN_RATE_H_

#include <chrono>
#include <cstdint>
#include <optional>

namespace tensorflow_ipu::core {

// Measured from one moment in which the queue is full to the next: in between, as many elements left as came.
//
// Not thread-safe.
class DrainRate {
 public:
  using Clock = std::chrono::steady_clock;

  // The queue is full, after so many elements in all have left it.
  void Full(Clock::time_point now, int64_t taken) {
    if (last_.has_value() && taken > taken_) an_element_ = (now - *last_) / (taken - taken_);
    last_ = now;
    taken_ = taken;
  }

  // How long it takes until so many elements have left it, if it goes on as it did; nothing where nobody knows.
  std::optional<std::chrono::nanoseconds> TimeFor(int64_t elements) const {
    if (!an_element_.has_value()) return std::nullopt;
    return *an_element_ * elements;
  }

 private:
  std::optional<Clock::time_point> last_;  // When it was full.
  int64_t taken_ = 0;                      // Elements that had left it then.
  std::optional<std::chrono::nanoseconds> an_element_;
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_DRAIN_RATE_H_
