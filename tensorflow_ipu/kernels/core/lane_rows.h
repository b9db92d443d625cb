// Which element of a dataset goes to which lane of an infeed.
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

// Consecutive elements make up a row, of which each lane gets one: element t * lanes + r goes to lane r as its element
// t. Lanes may share: then a row has an element a group, and all lanes of group g get the row's element g. A row is
// ready once all its elements are, so that an incomplete last row reaches no lane, however the threads' times fall.
// Elements stay until all that are to have them took them.
//
// Not thread-safe.
template <typename Element>
class LaneRows {
 public:
  // `sharing` says which lanes get the same elements. How many lanes there are may turn out later.
  explicit LaneRows(Grouping sharing) : sharing_(sharing) {}

  const Grouping& sharing() const { return sharing_; }

  // Elements of a row; 0 until there are lanes.
  int64_t width() const { return width_; }

  // Elements that came so far.
  int64_t pushed() const { return pushed_; }

  // Elements that came and were not yet taken by all.
  int64_t held() const { return pushed_ - taken_; }

  // The number of the element that this lane gets next.
  int64_t NextOf(int64_t lane) const { return rows_[lane] * width_ + ColumnOf(lane); }

  // The row that this lane is at: how many elements it took.
  int64_t RowOf(int64_t lane) const { return rows_[lane]; }

  bool IsReady(int64_t lane) const { return (rows_[lane] + 1) * width_ <= pushed_; }

  // The grouping divides so many lanes.
  void SetLanes(int64_t lanes) {
    shares_ = sharing_.size == 0 ? lanes : sharing_.size;
    width_ = lanes / shares_;
    for (int64_t index = taken_; index < pushed_; ++index) slots_[index].left = shares_;
    rows_.assign(lanes, 0);
  }

  // Appends an element. In exchange `*element` becomes what a Pop has left in its place.
  void Push(Element* element) {
    slots_.MakePlace(taken_, pushed_);
    Slot& slot = slots_[pushed_++];
    std::swap(slot.element, *element);
    slot.left = shares_;
  }

  // Whether the element that came last was the last of its row.
  bool EndsRow() const { return width_ > 0 && pushed_ % width_ == 0; }

  // Has the processor load the places of this lane's next elements, `most` at most, which were written on another core,
  // while the program does something else.
  void Prefetch(int64_t lane, std::size_t most) const {
    const int64_t begin = NextOf(lane);
    const int64_t end = std::min(pushed_, begin + static_cast<int64_t>(most) * width_);
    for (int64_t number = begin; number < end; number += width_) __builtin_prefetch(&slots_[number], /*rw=*/1);
  }

  // Takes this lane's next element, if it is ready, and keeps what `*element` was. Returns whether it was.
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

  // Drops all elements: returns them, and all memory.
  auto Clear() {
    taken_ = pushed_;
    return std::exchange(slots_, {});
  }

  // Elements that were pushed and not yet used, where each lane has `ahead[lane]` elements that it took and did not
  // use.
  int64_t Unused(const std::vector<int64_t>& ahead) const {
    std::vector<int64_t> used(width_, pushed_);  // Of the elements of each column of the rows.
    for (std::size_t lane = 0; lane < ahead.size(); ++lane) {
      int64_t& column = used[ColumnOf(static_cast<int64_t>(lane))];
      column = std::min(column, rows_[lane] - ahead[lane]);
    }
    return std::accumulate(used.begin(), used.end(), pushed_, std::minus<int64_t>());
  }

 private:
  struct Slot {
    Element element{};
    int64_t left = 0;  // How many lanes have yet to take it.
  };

  int64_t ColumnOf(int64_t lane) const {
    if (shares_ == 1) return lane;
    return Group::Of(sharing_, lane, static_cast<int64_t>(rows_.size())).number;
  }

  const Grouping sharing_;
  Ring<Slot> slots_;   // Elements by number, from taken_ to pushed_.
  int64_t taken_ = 0;  // Elements before this one are taken by all.
  int64_t pushed_ = 0;
  int64_t shares_ = 1;         // Lanes that get the same element.
  int64_t width_ = 0;          // Elements of a row.
  std::vector<int64_t> rows_;  // A lane: how many elements it took.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_LANE_ROWS_H_
