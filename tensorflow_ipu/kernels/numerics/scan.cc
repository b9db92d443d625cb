#include "tensorflow_ipu/kernels/numerics/scan.h"

#include <limits>
#include <type_traits>

#include "tensorflow_ipu/kernels/numerics/processor.h"

namespace tensorflow_ipu::core {

namespace {

// The inner loop has a fixed length, because GCC vectorizes no other loops at -O2. The search ends after the first
// block with a hit.
constexpr int64_t kBlock = 256;

// Compares the largest magnitude of a block: every processor has a vector maximum, but not every vector comparison.
template <typename Signed, typename Word>
[[gnu::always_inline]] inline bool Has(Word limit, const Word* words, int64_t count) {
  constexpr Signed kMagnitude = std::numeric_limits<Signed>::max();
  const auto largest_of = [](const Word* block, auto size) __attribute__((always_inline)) {
    Signed largest = 0;
    for (int64_t i = 0; i < size; ++i) {
      const auto magnitude = static_cast<Signed>(block[i] & kMagnitude);
      largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
  };
  const auto bound = static_cast<Signed>(limit);
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    if (largest_of(words + i, std::integral_constant<int64_t, kBlock>()) >= bound) return true;
  }
  return largest_of(words + i, count - i) >= bound;
}

#if IPU_X86
template <typename Signed, typename Word>
__attribute__((target("avx2"))) bool HasByAvx2(Word limit, const Word* words, int64_t count) {
  return Has<Signed>(limit, words, count);
}
#endif

template <typename Signed, typename Word>
bool HasByBest(Word limit, const Word* words, int64_t count) {
#if IPU_X86
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return HasByAvx2<Signed>(limit, words, count);
#endif
  return Has<Signed>(limit, words, count);
}

}  // namespace

bool HasHalvesFrom(uint16_t limit, const uint16_t* halves, int64_t count) {
  return HasByBest<int16_t>(limit, halves, count);
}

bool HasFloatsFrom(uint32_t limit, const uint32_t* floats, int64_t count) {
  return HasByBest<int32_t>(limit, floats, count);
}

}  // namespace tensorflow_ipu::core
