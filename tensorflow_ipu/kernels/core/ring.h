#ifndef TENSORFLOW_IPU_KERNELS_CORE_RING_H_
#define TENSORFLOW_IPU_KERNELS_CORE_RING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tensorflow_ipu::core {

// A growing ring buffer of numbered elements. The owner keeps track of those in use, from `begin` to `end`.
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

  std::vector<T> places_;  // A power of two.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_RING_H_
