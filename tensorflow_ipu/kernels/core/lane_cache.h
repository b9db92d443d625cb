#ifndef TENSORFLOW_IPU_KERNELS_CORE_LANE_CACHE_H_
#define TENSORFLOW_IPU_KERNELS_CORE_LANE_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu::core {

// Prefetches what an element refers to, if it has such a method.
template <typename Element>
auto Prefetch(const Element& element, int) -> decltype(element.Prefetch()) {
  element.Prefetch();
}
template <typename Element>
void Prefetch(const Element&, long) {}

// A queue that pump and program lock for each element would move between the caches of two cores each time. So a
// replica takes a batch under the queue's lock, and then single elements from its own cache lines.
template <typename Element>
struct alignas(64) LaneCache {
  mutable Mutex mutex;
  std::vector<Element> elements IPU_GUARDED_BY(mutex);  // Those from `next` to `end` are left.
  std::size_t next IPU_GUARDED_BY(mutex) = 0;
  std::size_t end IPU_GUARDED_BY(mutex) = 0;

  int64_t count() const IPU_REQUIRES(mutex) { return static_cast<int64_t>(end - next); }

  void Take(Element* element) IPU_REQUIRES(mutex) {
    std::swap(*element, elements[next++]);
    if (next < end) Prefetch(elements[next], 0);
  }

  template <typename Use>
  void TakeInPlace(Use use) IPU_REQUIRES(mutex) {
    use(elements[next++]);
    if (next < end) Prefetch(elements[next], 0);
  }

  std::vector<Element> Clear() IPU_REQUIRES(mutex) {
    next = end = 0;
    return std::move(elements);
  }

  // Takes up to `most` elements while `pop(Element*)` returns true. The cache must be empty.
  template <typename Pop>
  void Refill(std::size_t most, Pop pop) IPU_REQUIRES(mutex) {
    if (elements.size() < most) elements.resize(most);
    next = end = 0;
    while (end < most && pop(&elements[end])) ++end;
  }
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_LANE_CACHE_H_
