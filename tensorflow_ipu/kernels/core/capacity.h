// How many elements an infeed keeps ready.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_CAPACITY_H_
#define TENSORFLOW_IPU_KERNELS_CORE_CAPACITY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tensorflow_ipu/kernels/core/tuning.h"

namespace tensorflow_ipu::core {

class Capacity {
 public:
  explicit Capacity(int64_t depth) : depth_(depth), elements_(depth) {}

  int64_t elements() const { return elements_; }

  std::size_t batch() const {
    return static_cast<std::size_t>(std::clamp<int64_t>(ElementsOf(kBatchBytes), 1, kBatchElements));
  }

  void SetWidth(int64_t width) {
    width_ = width;
    Reset();
  }

  void SetBytes(std::size_t bytes) {
    const bool first = bytes_ == 0;
    bytes_ = std::max<std::size_t>(1, bytes);
    if (first && width_ > 0) Reset();
  }

  void RanFull() { ran_full_ = true; }

  // A queue that runs full and then empty has a fast pump, and too few elements to bridge the moments in which one
  // thread waits for a core or for the other. So small elements get twice the capacity, up to kGrownBytes.
  void RanEmpty() {
    if (!ran_full_) return;
    ran_full_ = false;
    if (2 * elements_ <= ElementsOf(kGrownBytes)) elements_ = 2 * elements_;
  }

 private:
  int64_t ElementsOf(std::size_t bytes) const { return bytes_ == 0 ? 0 : static_cast<int64_t>(bytes / bytes_); }

  void Reset() { elements_ = std::max(depth_ * width_, std::min(kRowsAhead * width_, ElementsOf(kBytesAhead))); }

  const int64_t depth_;
  int64_t width_ = 0;
  std::size_t bytes_ = 0;
  int64_t elements_;
  bool ran_full_ = false;
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_CAPACITY_H_
