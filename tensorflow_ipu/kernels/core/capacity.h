// How many elements an infeed keeps ready.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_CAPACITY_H_
#define TENSORFLOW_IPU_KERNELS_CORE_CAPACITY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tensorflow_ipu/kernels/core/tuning.h"

namespace tensorflow_ipu::core {

// Adapts to the size of the elements, and to whether the queue was seen to run full and then empty.
class Capacity {
 public:
  // `depth` rows are kept ready in any case.
  explicit Capacity(int64_t depth) : depth_(depth), elements_(depth) {}

  // How many elements the queue holds at most.
  int64_t elements() const { return elements_; }

  // How many elements a lane had better take at a time.
  std::size_t batch() const {
    return static_cast<std::size_t>(std::clamp<int64_t>(ElementsOf(kBatchBytes), 1, kBatchElements));
  }

  // Rows turn out to have so many elements.
  void SetWidth(int64_t width) {
    width_ = width;
    Reset();
  }

  // Elements turn out to have so many bytes.
  void SetBytes(std::size_t bytes) {
    const bool first = bytes_ == 0;
    bytes_ = std::max<std::size_t>(1, bytes);
    if (first && width_ > 0) Reset();
  }

  // The pump had to wait until elements were taken.
  void RanFull() { ran_full_ = true; }

  // A program found no element. A queue that runs full and then empty has a pump that is fast enough, and too few
  // elements to bridge the moments in which one thread waits for a core or for the other: small elements are given
  // twice the capacity then, up to kGrownBytes.
  void RanEmpty() {
    if (!ran_full_) return;
    ran_full_ = false;
    if (2 * elements_ <= ElementsOf(kGrownBytes)) elements_ = 2 * elements_;
  }

 private:
  // How many elements have so many bytes; 0 as long as no element was seen.
  int64_t ElementsOf(std::size_t bytes) const { return bytes_ == 0 ? 0 : static_cast<int64_t>(bytes / bytes_); }

  void Reset() { elements_ = std::max(depth_ * width_, std::min(kRowsAhead * width_, ElementsOf(kBytesAhead))); }

  const int64_t depth_;
  int64_t width_ = 0;  // 0 until it is known.
  std::size_t bytes_ = 0;
  int64_t elements_;
  bool ran_full_ = false;  // Since it last ran empty.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_CAPACITY_H_
