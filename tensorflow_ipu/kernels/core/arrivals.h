// When the next row of a queue is due, and how long a thread may spin for it.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_ARRIVALS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_ARRIVALS_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "tensorflow_ipu/kernels/core/tuning.h"

namespace tensorflow_ipu::core {

// Rows that come at regular intervals say when the next one comes, and others say nothing. Each row that was waited for
// pays for some time to spin, which is a tenth of the interval at most, so that no reader takes a core.
//
// Not thread-safe.
class Arrivals {
 public:
  using Clock = std::chrono::steady_clock;

  // The next row comes between these two as a rule.
  struct Due {
    Clock::time_point from;
    Clock::time_point to;
    std::chrono::nanoseconds spin;  // What has been paid for.
  };

  // A row came that was waited for, as the last one of so many.
  void Came(Clock::time_point when, int64_t rows) {
    if (last_.has_value() && rows > rows_) Note((when - *last_) / (rows - rows_));
    last_ = when;
    rows_ = rows;
  }

  // The wait for a row took so long of the processor's time.
  void Spun(std::chrono::nanoseconds time) { paid_ -= time; }

  // Nothing where rows come irregularly, or one of the `rows` that came in all was not waited for.
  std::optional<Due> Next(int64_t rows) const {
    if (!interval_.has_value() || rows != rows_ || paid_.count() <= 0) return std::nullopt;
    const std::chrono::nanoseconds margin = 2 * deviation_;
    if (2 * margin > std::min<std::chrono::nanoseconds>(*interval_ / 2, kLongestDueSpin)) return std::nullopt;
    const Clock::time_point at = *last_ + *interval_;
    return Due{at - margin, at + margin, paid_};
  }

 private:
  void Note(std::chrono::nanoseconds interval) {
    if (!interval_.has_value()) {
      interval_ = interval;
      deviation_ = interval;  // Nobody knows yet.
      return;
    }
    // Neither follows a single long interval, which comes from a thread that lost its core.
    const std::chrono::nanoseconds off = interval - *interval_;
    const std::chrono::nanoseconds step = *interval_ / 8;
    interval_ = *interval_ + std::clamp(off / 4, -step, step);
    deviation_ += (std::min(std::chrono::abs(off), *interval_) - deviation_) / 8;
    paid_ = std::min(paid_ + std::min<std::chrono::nanoseconds>(interval / 10, kDueSpinOfRow), kLongestDueSpin);
  }

  std::optional<Clock::time_point> last_;
  int64_t rows_ = 0;
  std::optional<std::chrono::nanoseconds> interval_;
  std::chrono::nanoseconds deviation_{0};  // Mean distance of an interval from it.
  std::chrono::nanoseconds paid_{0};
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_ARRIVALS_H_
