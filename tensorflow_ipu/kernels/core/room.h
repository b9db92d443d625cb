// How many elements an infeed keeps ready.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_ROOM_H_
#define TENSORFLOW_IPU_KERNELS_CORE_ROOM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tensorflow_ipu::core {

class Room {
 public:
  // `depth` rows are kept ready in any case.
  explicit Room(int64_t depth) : depth_(depth), elements_(depth) {}

  // For how many elements there is room.
  int64_t elements() const { return elements_; }

  // How many elements a lane had better take at a time.
  std::size_t hand() const {
    return static_cast<std::size_t>(std::clamp<int64_t>(ElementsOf(kHandBytes), 1, kHandElements));
  }

  // Rows turn out to have so many elements.
  void SetWidth(int64_t width) {
    width_ = width;
    Make();
  }

  // Elements turn out to have so many bytes.
  void SetBytes(std::size_t bytes) {
    const bool first = bytes_ == 0;
    bytes_ = std::max<std::size_t>(1, bytes);
    if (first && width_ > 0) Make();
  }

  // The pump had to wait for room.
  void RanFull() { ran_full_ = true; }

  // A program found no element. A queue that runs full and then empty has a pump that is fast enough, and too few
  // elements to bridge the moments in which one thread waits for a core or for the other. Small elements get more room
  // then: never more than kGrownBytes.
  void RanEmpty() {
    if (!ran_full_) return;
    ran_full_ = false;
    if (2 * elements_ <= ElementsOf(kGrownBytes)) elements_ = 2 * elements_;
  }

 private:
  // What there is room for beyond the depth, from the start: so many rows, of so many bytes in all. Each wake of the
  // pump takes a processor from the program, so it had better serve several elements.
  static constexpr int64_t kRowsAhead = 32;
  static constexpr std::size_t kBytesAhead = std::size_t{4} << 20;
  // And what it may grow to. More would leave the processor's caches before it is taken.
  static constexpr std::size_t kGrownBytes = std::size_t{256} << 10;
  static constexpr int64_t kHandElements = 16;
  static constexpr std::size_t kHandBytes = std::size_t{16} << 10;

  // How many elements so many bytes are good for; 0 as long as no element was seen.
  int64_t ElementsOf(std::size_t bytes) const { return bytes_ == 0 ? 0 : static_cast<int64_t>(bytes / bytes_); }

  void Make() { elements_ = std::max(depth_ * width_, std::min(kRowsAhead * width_, ElementsOf(kBytesAhead))); }

  const int64_t depth_;
  int64_t width_ = 0;  // 0 until it is known.
  std::size_t bytes_ = 0;
  int64_t elements_;
  bool ran_full_ = false;  // Since it last ran empty.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_ROOM_H_
