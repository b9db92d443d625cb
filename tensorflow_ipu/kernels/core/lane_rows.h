#ifndef TENSORFLOW_IPU_KERNELS_CORE_LANE_ROWS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_LANE_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "tensorflow_ipu/kernels/core/groups.h"
#include "tensorflow_ipu/kernels/core/ring.h"

namespace tensorflow_ipu::core {

// Consecutive elements make up a row with one element per replica, or with one per group of replicas that share. A row
// is ready once it is complete, so that an incomplete last row reaches no replica. Not thread-safe.
template <typename Element>
class LaneRows {
 public:
  explicit LaneRows(Grouping sharing) : sharing_(sharing) {}

  const Grouping& sharing() const { return sharing_; }

  int64_t width() const { return width_; }

  int64_t pushed() const { return pushed_; }

  // Elements that were not yet taken by all.
  int64_t held() const { return pushed_ - taken_; }

  int64_t NextOf(int64_t lane) const { return rows_[lane] * width_ + ColumnOf(lane); }

  int64_t RowOf(int64_t lane) const { return rows_[lane]; }

  bool IsReady(int64_t lane) const { return (rows_[lane] + 1) * width_ <= pushed_; }

  void SetLanes(int64_t lanes) {
    shares_ = sharing_.size == 0 ? lanes : sharing_.size;
    width_ = lanes / shares_;
    for (int64_t index = taken_; index < pushed_; ++index) slots_[index].left = shares_;
    rows_.assign(lanes, 0);
  }

  // Appends an element. `*element` gets the memory that a Pop left.
  void Push(Element* element) {
    slots_.MakePlace(taken_, pushed_);
    Slot& slot = slots_[pushed_++];
    std::swap(slot.element, *element);
    slot.left = shares_;
  }

  bool EndsRow() const { return width_ > 0 && pushed_ % width_ == 0; }

  // Loads the slots of the next elements, which another core wrote.
  void Prefetch(int64_t lane, std::size_t most) const {
    const int64_t begin = NextOf(lane);
    const int64_t end = std::min(pushed_, begin + static_cast<int64_t>(most) * width_);
    for (int64_t number = begin; number < end; number += width_) __builtin_prefetch(&slots_[number], /*rw=*/1);
  }

  bool Pop(int64_t lane, Element* element) {
    if (!IsReady(lane)) return false;
    Slot& slot = slots_[NextOf(lane)];
    if (--slot.left == 0) {
      std::swap(*element, slot.element);
    } else {
      *element = slot.element;
    }
    ++rows_[lane];
    while (taken_ < pushed_ && slots_[taken_].left == 0) ++taken_;
    return true;
  }

  auto Clear() {
    taken_ = pushed_;
    return std::exchange(slots_, {});
  }

  // Elements that were pushed and not yet used. `ahead[replica]` elements were taken and not used.
  int64_t Unused(const std::vector<int64_t>& ahead) const {
    std::vector<int64_t> used(width_, pushed_);  // By column.
    for (std::size_t lane = 0; lane < ahead.size(); ++lane) {
      int64_t& column = used[ColumnOf(static_cast<int64_t>(lane))];
      column = std::min(column, rows_[lane] - ahead[lane]);
    }
    return std::accumulate(used.begin(), used.end(), pushed_, std::minus<int64_t>());
  }

 private:
  struct Slot {
    Element element{};
    int64_t left = 0;  // Replicas that have yet to take it.
  };

  int64_t ColumnOf(int64_t lane) const {
    if (shares_ == 1) return lane;
    return Group::Of(sharing_, lane, static_cast<int64_t>(rows_.size())).number;
  }

  const Grouping sharing_;
  Ring<Slot> slots_;   // Elements by number, from taken_ to pushed_.
  int64_t taken_ = 0;  // All took the elements before this one.
  int64_t pushed_ = 0;
  int64_t shares_ = 1;         // Replicas that get the same element.
  int64_t width_ = 0;          // Elements of a row.
  std::vector<int64_t> rows_;  // By replica: how many elements it took.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_LANE_ROWS_H_
