// Elements that a lane of an infeed has been given ahead of their use.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_LANE_CACHE_H_
#define TENSORFLOW_IPU_KERNELS_CORE_LANE_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu::core {

// Has the processor load what an element refers to into its cache, where the element can do so.
template <typename Element>
auto Prefetch(const Element& element, int) -> decltype(element.Prefetch()) {
  element.Prefetch();
}
template <typename Element>
void Prefetch(const Element&, long) {}

// A queue that the pump and the program lock for each element moves between the caches of two cores each time, which
// takes longer than all else that a small element costs. So a lane takes a batch of elements under the queue's lock,
// and then one after the other from memory that is its own, on cache lines of its own.
template <typename Element>
struct alignas(64) LaneCache {
  mutable Mutex mutex;
  std::vector<Element> elements IPU_GUARDED_BY(mutex);  // Those from `next` to `end` are there to take.
  std::size_t next IPU_GUARDED_BY(mutex) = 0;
  std::size_t end IPU_GUARDED_BY(mutex) = 0;

  int64_t count() const IPU_REQUIRES(mutex) { return static_cast<int64_t>(end - next); }

  // Takes the next element, and keeps what `*element` was.
  void Take(Element* element) IPU_REQUIRES(mutex) {
    std::swap(*element, elements[next++]);
    if (next < end) Prefetch(elements[next], 0);
  }

  // Has `use(Element&)` use the next element where it lies.
  template <typename Use>
  void TakeInPlace(Use use) IPU_REQUIRES(mutex) {
    use(elements[next++]);
    if (next < end) Prefetch(elements[next], 0);
  }

  // Gives up all it has.
  std::vector<Element> Clear() IPU_REQUIRES(mutex) {
    next = end = 0;
    return std::move(elements);
  }

  // Takes elements as long as `pop(Element*)` returns true, `most` at most. None may be left to take.
  template <typename Pop>
  void Refill(std::size_t most, Pop pop) IPU_REQUIRES(mutex) {
    if (elements.size() < most) elements.resize(most);
    next = end = 0;
    while (end < most && pop(&elements[end])) ++end;
  }
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_LANE_CACHE_H_
