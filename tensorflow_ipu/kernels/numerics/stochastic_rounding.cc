#include "tensorflow_ipu/kernels/numerics/stochastic_rounding.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "tensorflow_ipu/kernels/numerics/half.h"
#include "tensorflow_ipu/kernels/numerics/partials.h"
#include "tensorflow_ipu/kernels/numerics/processor.h"

namespace tensorflow_ipu::core {

namespace {

constexpr int32_t kMagnitude = 0x7fffffff;
constexpr int32_t kExponent = 0x7f800000;
constexpr int32_t kNan = 0x7fc00000;
constexpr int32_t kLargestHalf = 0x477fe000;     // 65504.
constexpr int32_t kSmallestNormal = 0x38800000;  // 2^-14, the smallest normal value of float16.
constexpr int kDropped = 13;                     // The significand bits that float16 drops.

uint32_t Mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * kFirstFactor;
  x = (x ^ (x >> 15)) * kSecondFactor;
  return x ^ (x >> 16);
}

// Adds random bits below the last bit of float16. If the bits that float16 drops are then cut off, the value is rounded
// stochastically.
template <RoundTo to>
[[gnu::always_inline]] inline float Raised(float value, uint32_t random) {
  const auto bits = static_cast<float>(static_cast<int32_t>(random));
  if constexpr (to == RoundTo::kIntegers) return __builtin_floorf(value + bits * (1.0f / (1 << kDropped)));
  int32_t magnitude = Bits(value) & kMagnitude;
  // Comparisons with NaNs are false, so NaNs are kept.
  if constexpr (to == RoundTo::kHalves) magnitude = Select(FromBits(magnitude) > 65504, kLargestHalf, magnitude);
  // The last bit of float32 is 2^-23 times its leading bit. Subnormal values of float16 have the same distance as the
  // smallest normal ones.
  const int32_t last_bit = (std::max(magnitude, kSmallestNormal) & kExponent) - (23 << 23);
  const float sum = FromBits(magnitude) + bits * FromBits(last_bit);
  const int32_t raised = Select(to == RoundTo::kHalvesOrNan && sum >= 65536, kNan, Bits(sum));
  return FromBits(raised | (Bits(value) & ~kMagnitude));
}

// Cuts off the bits that float16 drops, like a conversion toward zero.
[[gnu::always_inline]] inline float Cut(float value) {
  const int32_t magnitude = Bits(value) & kMagnitude;
  const float quanta = FromBits(Select(magnitude < kSmallestNormal, magnitude, 0)) * 0x1p24f;
  const int32_t small = Bits(static_cast<float>(static_cast<int32_t>(quanta)) * 0x1p-24f);
  const int32_t cut = Select(magnitude < kSmallestNormal, small, magnitude & ~((1 << kDropped) - 1));
  return FromBits(cut | (Bits(value) & ~kMagnitude));
}

// Blocks have a fixed length and separate arrays, because GCC vectorizes no other loops at -O2.
constexpr uint32_t kBlock = 128;

// Converts a block to float32, and back by dropping the bits that float16 lacks.
struct Plain {
  static void Load(const uint16_t* from, float* to) {
    for (uint32_t i = 0; i < kBlock; ++i) to[i] = F16::Load(from[i]);
  }
  static void Store(const float* from, uint16_t* to) {
    for (uint32_t i = 0; i < kBlock; ++i) to[i] = F16::Store(Cut(from[i]));
  }
};

#if IPU_X86
#define IPU_AVX2 __attribute__((target("avx2,f16c")))
#define IPU_AVX512 __attribute__((target("avx2,f16c,avx512f,avx512dq,avx512vl")))
constexpr int kTowardZero = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;

struct F16c {
  IPU_AVX2 static void Load(const uint16_t* from, float* to) {
    for (uint32_t i = 0; i < kBlock; i += 8) {
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
    }
  }
  IPU_AVX2 static void Store(const float* from, uint16_t* to) {
    for (uint32_t i = 0; i < kBlock; i += 8) {
      const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), kTowardZero);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
    }
  }
};

// Stores are as wide as the loads that follow, because a load of data from two stores takes long. The conversions have
// a mask, because GCC 12 warns of uninitialized variables in those without one.
struct Avx512 {
  IPU_AVX512 static void Load(const uint16_t* from, float* to) {
    for (uint32_t i = 0; i < kBlock; i += 16) {
      const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
      _mm512_storeu_ps(to + i, _mm512_maskz_cvtph_ps(0xffff, halves));
    }
  }
  IPU_AVX512 static void Store(const float* from, uint16_t* to) {
    for (uint32_t i = 0; i < kBlock; i += 16) {
      const __m256i halves = _mm512_maskz_cvtps_ph(0xffff, _mm512_loadu_ps(from + i), kTowardZero);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), halves);
    }
  }
};
#endif

// Copies a whole block by a loop: a call of `std::memcpy` takes longer.
[[gnu::always_inline]] inline void Copy(const float* from, std::size_t count, float* to) {
  if (count < kBlock) std::memcpy(to, from, count * sizeof(float));
  for (uint32_t i = 0; count == kBlock && i < kBlock; ++i) to[i] = from[i];
}

template <typename Half>
[[gnu::always_inline]] inline void Load(const Numbers& from, int64_t index, std::size_t count, float (&block)[kBlock]) {
  if (from.one) {
    const float value =
        from.half ? F16::Load(*static_cast<const uint16_t*>(from.data)) : *static_cast<float*>(from.data);
    for (uint32_t i = 0; i < kBlock; ++i) block[i] = value;
  } else if (from.half) {
    const uint16_t* halves = static_cast<const uint16_t*>(from.data) + index;
    uint16_t copy[kBlock];
    if (count < kBlock) {
      std::memset(copy, 0, sizeof(copy));
      halves = static_cast<const uint16_t*>(std::memcpy(copy, halves, count * sizeof(uint16_t)));
    }
    Half::Load(halves, block);
  } else {
    Copy(static_cast<const float*>(from.data) + index, count, block);
  }
}

template <typename Half>
[[gnu::always_inline]] inline void Store(const float (&block)[kBlock], const Numbers& to, int64_t index,
                                         std::size_t count) {
  if (to.half) {
    uint16_t copy[kBlock];
    uint16_t* const halves = static_cast<uint16_t*>(to.data) + index;
    Half::Store(block, count < kBlock ? copy : halves);
    if (count < kBlock) std::memcpy(halves, copy, count * sizeof(uint16_t));
  } else {
    Copy(block, count, static_cast<float*>(to.data) + index);
  }
}

[[gnu::always_inline]] inline void Apply(Operation operation, const float (&b)[kBlock], float (&block)[kBlock]) {
  const auto apply = [&](auto compute) __attribute__((always_inline)) {
    for (uint32_t i = 0; i < kBlock; ++i) block[i] = compute(block[i], b[i]);
  };
  if (operation == Operation::kAdd) apply([](float x, float y) { return x + y; });
  if (operation == Operation::kSubtract) apply([](float x, float y) { return x - y; });
  if (operation == Operation::kMultiply) apply([](float x, float y) { return x * y; });
  if (operation == Operation::kDivide) apply([](float x, float y) { return x / y; });
  if (operation == Operation::kSqrt) apply([](float x, float) { return __builtin_sqrtf(x); });
}

template <RoundTo to, typename Half>
[[gnu::always_inline]] inline void Round(const StochasticRounding& work, int64_t begin, int64_t end) {
  const uint32_t first_key = Mixed(work.key[0] + static_cast<uint32_t>(work.site >> 32));
  const uint32_t second_key = Mixed(work.key[1] ^ static_cast<uint32_t>(work.site));
  float block[kBlock] = {}, b[kBlock] = {};
  for (int64_t index = begin; index < end; index += kBlock) {
    const auto count = static_cast<std::size_t>(std::min<int64_t>(kBlock, end - index));
    Load<Half>(work.a, index, count, block);
    if (work.b.data != nullptr) Load<Half>(work.b, index, count, b);
    Apply(work.operation, b, block);
    uint32_t word = static_cast<uint32_t>(index) * kGolden + first_key;  // One value per element.
    for (uint32_t i = 0; i < kBlock; ++i, word += kGolden) {
      uint32_t x = (word ^ (word >> 16)) * kFirstFactor + second_key;
      x = (x ^ (x >> 15)) * kSecondFactor;
      block[i] = Raised<to>(block[i], x >> (32 - kDropped));
    }
    const bool cuts = to != RoundTo::kIntegers && !work.result.half;
    for (uint32_t i = 0; cuts && i < kBlock; ++i) block[i] = Cut(block[i]);
    Store<Half>(block, work.result, index, count);
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
IPU_KERNEL(ByAvx512, IPU_AVX512, Avx512)
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
