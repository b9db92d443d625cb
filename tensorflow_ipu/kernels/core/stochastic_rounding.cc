#include "tensorflow_ipu/kernels/core/stochastic_rounding.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "tensorflow_ipu/kernels/core/half.h"
#include "tensorflow_ipu/kernels/core/partials.h"
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
constexpr uint32_t kBlock = 64;

// Converts a block to float32 and back.
struct Plain {
  static void Load(const uint16_t* from, float* to) {
    for (uint32_t i = 0; i < kBlock; ++i) to[i] = F16::Load(from[i]);
  }
  static void Store(const float* from, uint16_t* to) {
    for (uint32_t i = 0; i < kBlock; ++i) to[i] = F16::Store(from[i]);
  }
};

#if IPU_X86
#define IPU_AVX2 __attribute__((target("avx2,f16c")))
#define IPU_AVX512 __attribute__((target("avx2,f16c,avx512f,avx512dq,avx512vl")))
struct F16c {
  IPU_AVX2 static void Load(const uint16_t* from, float* to) {
    for (uint32_t i = 0; i < kBlock; i += 8) {
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
    }
  }
  IPU_AVX2 static void Store(const float* from, uint16_t* to) {
    for (uint32_t i = 0; i < kBlock; i += 8) {
      const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
    }
  }
};
#endif

template <typename Half>
[[gnu::always_inline]] inline void Load(const Numbers& from, int64_t at, std::size_t count, float (&block)[kBlock]) {
  if (from.one) {
    const float one = from.half ? F16::Load(*static_cast<const uint16_t*>(from.data)) : *static_cast<float*>(from.data);
    for (uint32_t i = 0; i < kBlock; ++i) block[i] = one;
  } else if (from.half) {
    const uint16_t* halves = static_cast<const uint16_t*>(from.data) + at;
    uint16_t copy[kBlock] = {};
    if (count < kBlock) halves = static_cast<const uint16_t*>(std::memcpy(copy, halves, count * sizeof(uint16_t)));
    Half::Load(halves, block);
  } else {
    std::memcpy(block, static_cast<const float*>(from.data) + at, count * sizeof(float));
  }
}

template <typename Half>
[[gnu::always_inline]] inline void Store(const float (&block)[kBlock], const Numbers& to, int64_t at,
                                         std::size_t count) {
  if (to.half) {
    uint16_t copy[kBlock];
    uint16_t* const halves = static_cast<uint16_t*>(to.data) + at;
    Half::Store(block, count < kBlock ? copy : halves);
    if (count < kBlock) std::memcpy(halves, copy, count * sizeof(uint16_t));
  } else {
    std::memcpy(static_cast<float*>(to.data) + at, block, count * sizeof(float));
  }
}

[[gnu::always_inline]] inline void Apply(Operation operation, const float (&b)[kBlock], float (&block)[kBlock]) {
  const auto each = [&](auto compute) __attribute__((always_inline)) {
    for (uint32_t i = 0; i < kBlock; ++i) block[i] = compute(block[i], b[i]);
  };
  if (operation == Operation::kAdd) each([](float x, float y) { return x + y; });
  if (operation == Operation::kSubtract) each([](float x, float y) { return x - y; });
  if (operation == Operation::kMultiply) each([](float x, float y) { return x * y; });
  if (operation == Operation::kDivide) each([](float x, float y) { return x / y; });
  if (operation == Operation::kSqrt) each([](float x, float) { return __builtin_sqrtf(x); });
}

template <RoundTo to, typename Half>
[[gnu::always_inline]] inline void Round(const StochasticRounding& work, int64_t begin, int64_t end) {
  const uint32_t first_key = Mixed(work.key[0] + static_cast<uint32_t>(work.site >> 32));
  const uint32_t second_key = Mixed(work.key[1] ^ static_cast<uint32_t>(work.site));
  float block[kBlock] = {}, b[kBlock] = {};
  for (int64_t at = begin; at < end; at += kBlock) {
    const auto count = static_cast<std::size_t>(std::min<int64_t>(kBlock, end - at));
    Load<Half>(work.a, at, count, block);
    if (work.b.data != nullptr) Load<Half>(work.b, at, count, b);
    Apply(work.operation, b, block);
    const auto index = static_cast<uint32_t>(at);
    for (uint32_t i = 0; i < kBlock; ++i) {
      uint32_t x = (index + i) * kGolden + first_key;
      x = (x ^ (x >> 16)) * kFirstFactor + second_key;
      x = (x ^ (x >> 15)) * kSecondFactor;
      block[i] = Rounded<to>(block[i], x >> (32 - kDropped));
    }
    Store<Half>(block, work.result, at, count);
  }
}

using Kernel = void (*)(const StochasticRounding& work, int64_t begin, int64_t end);

#define IPU_KERNEL(name, target, Half)                                           \
  template <RoundTo to>                                                          \
  target void name(const StochasticRounding& work, int64_t begin, int64_t end) { \
    Round<to, Half>(work, begin, end);                                           \
  }
IPU_KERNEL(Portable, , Plain)
#if IPU_X86
IPU_KERNEL(ByAvx2, IPU_AVX2, F16c)
IPU_KERNEL(ByAvx512, IPU_AVX512, F16c)
#endif
#undef IPU_KERNEL

template <RoundTo to>
Kernel Best() {
#if IPU_X86
  const Instructions best = BestInstructions();
  if (best == Instructions::kAvx512 && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return ByAvx512<to>;
  if (best != Instructions::kPlain) return ByAvx2<to>;
#endif
  return Portable<to>;
}

}  // namespace

void StochasticRounding::Compute(int64_t first, int64_t last) const {
  static const Kernel kernels[] = {Best<RoundTo::kHalves>(), Best<RoundTo::kHalvesOrNan>(),
                                   Best<RoundTo::kHalvesAndBeyond>(), Best<RoundTo::kIntegers>()};
  kernels[static_cast<int>(to)](*this, first, last);
}

}  // namespace tensorflow_ipu::core
