// The storage of an infeed: rows of elements, the caches of replicas, and the maximum number of elements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/support/groups.h"
#include "tensorflow_ipu/kernels/support/tuning.h"

namespace tensorflow_ipu::core {

// A growing ring buffer of numbered elements. The owner tracks the range in use, from `begin` to `end`.
template <typename T>
class Ring {
 public:
  // A reused slot still has its old content.
  T& operator[](int64_t index) { return places_[static_cast<std::size_t>(index) & (places_.size() - 1)]; }
  const T& operator[](int64_t index) const { return const_cast<Ring&>(*this)[index]; }

  void MakePlace(int64_t begin, int64_t end) {
    if (end - begin < static_cast<int64_t>(places_.size())) return;
    Ring larger;
    larger.places_.resize(std::max(kSmallest, 2 * places_.size()));
    for (int64_t index = begin; index < end; ++index) larger[index] = std::move((*this)[index]);
    places_.swap(larger.places_);
  }

 private:
  static constexpr std::size_t kSmallest = 16;

  std::vector<T> places_;  // The size is a power of two.
};

// Groups elements into rows. A row has one element per replica or, if replicas share elements, one per group. It is
// ready once it is complete, so no replica gets an element of an incomplete last row. Example: four replicas that share
// in pairs, with two elements in a row:
//
//   elements   e0 e1 | e2 e3 | e4 ...      e4 waits for e5
//   replica    0, 1 take e0 e2;  2, 3 take e1 e3
//
// An element is kept until all replicas that share it have taken it. Not thread-safe.
template <typename Element>
class ReplicaRows {
 public:
  explicit ReplicaRows(Grouping sharing) : sharing_(sharing) {}

  const Grouping& sharing() const { return sharing_; }

  int64_t width() const { return width_; }

  int64_t pushed() const { return pushed_; }

  // Returns the number of elements that some replica has not taken yet.
  int64_t held() const { return pushed_ - taken_; }

  int64_t NextOf(int64_t replica) const { return rows_[replica] * width_ + ColumnOf(replica); }

  int64_t RowOf(int64_t replica) const { return rows_[replica]; }

  bool IsReady(int64_t replica) const { return (rows_[replica] + 1) * width_ <= pushed_; }

  void SetReplicas(int64_t replicas) {
    shares_ = sharing_.size == 0 ? replicas : sharing_.size;
    width_ = replicas / shares_;
    for (int64_t index = taken_; index < pushed_; ++index) slots_[index].remaining = shares_;
    rows_.assign(replicas, 0);
  }

  // Appends an element. `*element` receives the memory that a Pop left.
  void Push(Element* element) {
    slots_.MakePlace(taken_, pushed_);
    Slot& slot = slots_[pushed_++];
    std::swap(slot.element, *element);
    slot.remaining = shares_;
  }

  bool EndsRow() const { return width_ > 0 && pushed_ % width_ == 0; }

  // Prefetches the slots of the next elements, which another core has written.
  void Prefetch(int64_t replica, std::size_t most) const {
    const int64_t begin = NextOf(replica);
    const int64_t end = std::min(pushed_, begin + static_cast<int64_t>(most) * width_);
    for (int64_t number = begin; number < end; number += width_) __builtin_prefetch(&slots_[number], /*rw=*/1);
  }

  bool Pop(int64_t replica, Element* element) {
    if (!IsReady(replica)) return false;
    Slot& slot = slots_[NextOf(replica)];
    if (--slot.remaining == 0) {
      std::swap(*element, slot.element);
    } else {
      *element = slot.element;
    }
    ++rows_[replica];
    while (taken_ < pushed_ && slots_[taken_].remaining == 0) ++taken_;
    return true;
  }

  auto Clear() {
    taken_ = pushed_;
    return std::exchange(slots_, {});
  }

  // Returns the number of elements that were pushed and not used yet. `ahead[replica]` elements were taken and not
  // used.
  int64_t Unused(const std::vector<int64_t>& ahead) const {
    std::vector<int64_t> used(width_, pushed_);  // By column.
    for (std::size_t replica = 0; replica < ahead.size(); ++replica) {
      int64_t& column = used[ColumnOf(static_cast<int64_t>(replica))];
      column = std::min(column, rows_[replica] - ahead[replica]);
    }
    return std::accumulate(used.begin(), used.end(), pushed_, std::minus<int64_t>());
  }

 private:
  struct Slot {
    Element element{};
    int64_t remaining = 0;  // The number of replicas that have not taken it yet.
  };

  int64_t ColumnOf(int64_t replica) const {
    if (shares_ == 1) return replica;
    return Group::Of(sharing_, replica, static_cast<int64_t>(rows_.size())).number;
  }

  const Grouping sharing_;
  Ring<Slot> slots_;   // Elements by number, from taken_ to pushed_.
  int64_t taken_ = 0;  // All replicas have taken the elements before this one.
  int64_t pushed_ = 0;
  int64_t shares_ = 1;         // The number of replicas that receive the same element.
  int64_t width_ = 0;          // The number of elements in a row.
  std::vector<int64_t> rows_;  // By replica: the number of elements that it took.
};

// Prefetches the data of an element, if its type has a method `Prefetch`.
template <typename Element>
auto Prefetch(const Element& element, int) -> decltype(element.Prefetch()) {
  element.Prefetch();
}
template <typename Element>
void Prefetch(const Element&, long) {}

// The elements that a replica has taken in advance. If pump and program locked the queue for each element, its cache
// lines would move between two cores each time. So a replica takes a batch under the queue's lock, and then single
// elements from its own cache lines.
template <typename Element>
struct alignas(64) ReplicaCache {
  mutable absl::Mutex mutex;
  std::vector<Element> elements ABSL_GUARDED_BY(mutex);  // Those from `next` to `end` are left.
  std::size_t next ABSL_GUARDED_BY(mutex) = 0;
  std::size_t end ABSL_GUARDED_BY(mutex) = 0;
  int64_t turn ABSL_GUARDED_BY(mutex) = 0;  // The turn on the device of the program that used the cache last.

  int64_t count() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return static_cast<int64_t>(end - next); }

  void Take(Element* element) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::swap(*element, elements[next++]);
    if (next < end) Prefetch(elements[next], 0);
  }

  template <typename Use>
  void TakeInPlace(Use use) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    use(elements[next++]);
    if (next < end) Prefetch(elements[next], 0);
  }

  std::vector<Element> Clear() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    next = end = 0;
    return std::move(elements);
  }

  // Takes up to `most` elements while `pop(Element*)` returns true. The cache must be empty.
  template <typename Pop>
  void Refill(std::size_t most, Pop pop) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (elements.size() < most) elements.resize(most);
    next = end = 0;
    while (end < most && pop(&elements[end])) ++end;
  }
};

// The number of elements that an infeed keeps ready, which depends on their size.
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

  // A queue that runs full and then empty has a fast pump. It then has too few elements to bridge the moments when one
  // thread waits for a core or for the other thread. So queues of small elements double their capacity, up to
  // kGrownBytes.
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
