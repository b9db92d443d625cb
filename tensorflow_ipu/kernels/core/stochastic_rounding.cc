#include "tensorflow_ipu/kernels/core/stochastic_rounding.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "tensorflow_ipu/kernels/core/half.h"
#include "tensorflow_ipu/kernels/core/processor.h"

namespace tensorflow_ipu::core {

namespace {

constexpr int32_t kMagnitude = 0x7fffffff;
constexpr int32_t kInfinite = 0x7f800000;
constexpr int32_t kNan = 0x7fc00000;
constexpr int32_t kLargestHalf = 0x477fe000;     // Of 65504.
constexpr int32_t kSmallestNormal = 0x38800000;  // Of 2^-14, the smallest normal number of float16.
constexpr int kDropped = 13;                     // The significand bits that float16 drops.
constexpr float kQuantum = 0x1p-24f;             // Between the numbers of float16 below the smallest normal one.

uint32_t Mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * kFirstFactor;
  x = (x ^ (x >> 15)) * kSecondFactor;
  return x ^ (x >> 16);
}

template <RoundTo to>
[[gnu::always_inline]] inline float Rounded(float value, uint32_t random) {
  const float fraction = static_cast<float>(static_cast<int32_t>(random)) * (1.0f / (1 << kDropped));
  if constexpr (to == RoundTo::kIntegers) return __builtin_floorf(value + fraction);
  const int32_t magnitude = Bits(value) & kMagnitude;
  // Adding random bits below the significand of float16 carries into it in proportion to the dropped bits; the rest is
  // cut off. Subnormal numbers are evenly spaced: there a random fraction is added and the sum is cut off.
  const auto normal = static_cast<int32_t>((static_cast<uint32_t>(magnitude) + random) & ~((1u << kDropped) - 1));
  const float quanta = FromBits(Select(magnitude < kSmallestNormal, magnitude, 0)) * (1 / kQuantum) + fraction;
  const int32_t small = Bits(static_cast<float>(static_cast<int32_t>(quanta)) * kQuantum);
  int32_t rounded = Select(magnitude < kSmallestNormal, small, normal);
  if constexpr (to == RoundTo::kHalves) rounded = Select(rounded > kLargestHalf, kLargestHalf, rounded);
  if constexpr (to == RoundTo::kHalvesOrNan) rounded = Select(rounded > kLargestHalf, kNan, rounded);
  rounded = Select(magnitude > kInfinite, magnitude, rounded);
  return FromBits(rounded | (Bits(value) & ~kMagnitude));
}

// Blocks of a fixed length in arrays of their own: GCC vectorizes no other loop at -O2.
constexpr int64_t kBlock = 64;

template <RoundTo to>
[[gnu::always_inline]] inline void Round(uint32_t first, uint32_t second, const float* from, float* result,
                                         int64_t begin, int64_t end) {
  float block[kBlock] = {};
  for (int64_t at = begin; at < end; at += kBlock) {
    const auto bytes = static_cast<std::size_t>(std::min(kBlock, end - at)) * sizeof(float);
    std::memcpy(block, from + at, bytes);
    const auto index = static_cast<uint32_t>(at);
    for (uint32_t i = 0; i < kBlock; ++i) {
      uint32_t x = (index + i) * kGolden + first;
      x = (x ^ (x >> 16)) * kFirstFactor + second;
      x = (x ^ (x >> 15)) * kSecondFactor;
      block[i] = Rounded<to>(block[i], x >> (32 - kDropped));
    }
    std::memcpy(result + at, block, bytes);
  }
}

using Kernel = void (*)(uint32_t first, uint32_t second, const float* from, float* to, int64_t begin, int64_t end);

#define IPU_KERNEL(name, target)                                                                              \
  template <RoundTo to>                                                                                       \
  target void name(uint32_t first, uint32_t second, const float* from, float* result, int64_t b, int64_t e) { \
    Round<to>(first, second, from, result, b, e);                                                             \
  }
IPU_KERNEL(Plain, )
#if IPU_X86
IPU_KERNEL(ByAvx2, __attribute__((target("avx2"))))
IPU_KERNEL(ByAvx512, __attribute__((target("avx512f,avx512dq,avx512vl"))))
#endif
#undef IPU_KERNEL

template <RoundTo to>
Kernel Best() {
#if IPU_X86
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return ByAvx512<to>;
  if (__builtin_cpu_supports("avx2")) return ByAvx2<to>;
#endif
  return Plain<to>;
}

}  // namespace

StochasticRounding::StochasticRounding(uint32_t first_key, uint32_t second_key, uint64_t site, RoundTo to)
    : first_(Mixed(first_key + static_cast<uint32_t>(site >> 32))),
      second_(Mixed(second_key ^ static_cast<uint32_t>(site))),
      to_(to) {}

void StochasticRounding::Compute(const float* from, float* to, int64_t first, int64_t last) const {
  static const Kernel kernels[] = {Best<RoundTo::kHalves>(), Best<RoundTo::kHalvesOrNan>(),
                                   Best<RoundTo::kHalvesAndBeyond>(), Best<RoundTo::kIntegers>()};
  kernels[static_cast<int>(to_)](first_, second_, from, to, first, last);
}

}  // namespace tensorflow_ipu::core
