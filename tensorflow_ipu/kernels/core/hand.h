// Elements that a lane of an infeed has been dealt ahead of their use.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_HAND_H_
#define TENSORFLOW_IPU_KERNELS_CORE_HAND_H_

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace tensorflow_ipu::core {

// Has an element that can do so bring what it refers to into the processor's cache.
template <typename Element>
auto Prefetch(const Element& element, int) -> decltype(element.Prefetch()) {
  element.Prefetch();
}
template <typename Element>
void Prefetch(const Element&, long) {}

// A queue that its pump and its program lock for each element wanders from one processor's cache to the other's, which
// takes longer than all else that a small element costs. A lane that takes several at a time has most of them from a
// place that is its own; on cache lines that are its own too.
//
// All but `mutex` is guarded by it.
template <typename Element>
struct alignas(64) Hand {
  mutable std::mutex mutex;
  std::vector<Element> elements;  // Those from `next` to `end` are there to take.
  std::size_t next = 0;
  std::size_t end = 0;

  std::size_t count() const { return end - next; }

  // Takes the next element, and keeps what `*element` was.
  void Take(Element* element) {
    std::swap(*element, elements[next++]);
    if (next < end) Prefetch(elements[next], 0);
  }

  // Gives up all it has.
  std::vector<Element> Fold() {
    next = end = 0;
    return std::move(elements);
  }

  // Is dealt as many elements as `deal(Element*)` returns true for, `most` at most. None may be left to take.
  template <typename Deal>
  void Refill(std::size_t most, Deal deal) {
    if (elements.size() < most) elements.resize(most);
    next = end = 0;
    while (end < most && deal(&elements[end])) ++end;
  }
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_HAND_H_
