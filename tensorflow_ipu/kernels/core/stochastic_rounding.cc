#include "tensorflow_ipu/kernels/core/stochastic_rounding.h"

#include <cstring>
#include <type_traits>

#include "tensorflow_ipu/kernels/core/processor.h"

namespace tensorflow_ipu::core {

namespace {

constexpr uint32_t kSign = 0x80000000u;
constexpr uint32_t kInfinite = 0x7f800000u;
constexpr uint32_t kNan = 0x7fc00000u;
constexpr uint32_t kLargestHalf = 0x477fe000u;     // Of 65504.
constexpr uint32_t kSmallestNormal = 0x38800000u;  // Of 2^-14, the smallest normal number of float16.
constexpr int kDropped = 13;                       // The significand bits that float16 drops.
constexpr float kQuantum = 0x1p-24f;               // Between the numbers of float16 below the smallest normal one.
constexpr uint32_t kGolden = 0x9e3779b9u;

// Constants of a 32-bit finalizer with low bias: Wellons, Prospecting for Hash Functions, 2018.
constexpr uint32_t kFirstFactor = 0x7feb352du;
constexpr uint32_t kSecondFactor = 0x846ca68bu;

uint32_t Mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * kFirstFactor;
  x = (x ^ (x >> 15)) * kSecondFactor;
  return x ^ (x >> 16);
}

template <typename To, typename From>
[[gnu::always_inline]] inline To BitsAs(From from) {
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <RoundTo to>
[[gnu::always_inline]] inline float Rounded(float value, uint32_t random) {
  const float fraction = static_cast<float>(static_cast<int32_t>(random)) * (1.0f / (1 << kDropped));
  if constexpr (to == RoundTo::kIntegers) return __builtin_floorf(value + fraction);
  const auto bits = BitsAs<uint32_t>(value);
  const uint32_t magnitude = bits & ~kSign;
  // Adding random bits below the significand of float16 carries into it in proportion to the dropped bits; the rest is
  // cut off. Subnormal numbers are evenly spaced: there a random fraction is added and the sum is cut off.
  const uint32_t normal = (magnitude + random) & ~((1u << kDropped) - 1);
  const auto quanta =
      static_cast<int32_t>(BitsAs<float>(magnitude < kSmallestNormal ? magnitude : 0u) * (1 / kQuantum) + fraction);
  const auto small = BitsAs<uint32_t>(static_cast<float>(quanta) * kQuantum);
  uint32_t rounded = magnitude < kSmallestNormal ? small : normal;
  if constexpr (to == RoundTo::kHalves) rounded = rounded > kLargestHalf ? kLargestHalf : rounded;
  if constexpr (to == RoundTo::kHalvesOrNan) rounded = rounded > kLargestHalf ? kNan : rounded;
  return BitsAs<float>(magnitude > kInfinite ? bits : rounded | (bits & kSign));
}

// The inner loop has a fixed length, since GCC vectorizes no other kind at -O2.
constexpr int64_t kBlock = 64;

template <RoundTo to>
[[gnu::always_inline]] inline void Round(uint32_t first, uint32_t second, const float* from, float* result,
                                         int64_t begin, int64_t end) {
  const auto rounded = [&](int64_t i) __attribute__((always_inline)) {
    uint32_t x = static_cast<uint32_t>(i) * kGolden + first;
    x = (x ^ (x >> 16)) * kFirstFactor + second;
    x = (x ^ (x >> 15)) * kSecondFactor;
    return Rounded<to>(from[i], x >> (32 - kDropped));
  };
  int64_t i = begin;
  for (; i + kBlock <= end; i += kBlock) {
    for (int64_t j = 0; j < kBlock; ++j) result[i + j] = rounded(i + j);
  }
  for (; i < end; ++i) result[i] = rounded(i);
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
IPU_KERNEL(ByAvx512, __attribute__((target("avx512f,avx512dq,avx512vl,prefer-vector-width=512"))))
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
