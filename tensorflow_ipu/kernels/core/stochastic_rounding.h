// Stochastic rounding of float32.
#pragma once

#include <cstdint>

#include "tensorflow_ipu/kernels/core/half.h"

namespace tensorflow_ipu::core {

// What numbers are rounded to: to numbers of float16, or to integers, which keeps no sign.
enum class RoundTo {
  kHalves,           // Beyond the largest, the largest.
  kHalvesOrNan,      // Beyond the largest, a NaN.
  kHalvesAndBeyond,  // As if float16 had more exponents; infinities stay.
  kIntegers,
};

// The significand bits that float16 drops, and the random bits of a rounding.
constexpr int kRandomBits = 13;

// Rounds a number up or down to a neighbour, with a probability by its distance. NaNs stay.
template <RoundTo to>
[[gnu::always_inline]] inline float Rounded(float value, uint32_t random) {
  constexpr int32_t kMagnitude = 0x7fffffff;
  constexpr int32_t kInfinite = 0x7f800000;
  constexpr int32_t kNan = 0x7fc00000;
  constexpr int32_t kLargestHalf = 0x477fe000;     // Of 65504.
  constexpr int32_t kSmallestNormal = 0x38800000;  // Of 2^-14, the smallest normal number of float16.
  constexpr float kQuantum = 0x1p-24f;             // Between the numbers of float16 below the smallest normal one.
  const float fraction = static_cast<float>(static_cast<int32_t>(random)) * (1.0f / (1 << kRandomBits));
  if constexpr (to == RoundTo::kIntegers) return __builtin_floorf(value + fraction);
  const int32_t magnitude = Bits(value) & kMagnitude;
  // Adding random bits below the significand of float16 carries into it in proportion to the dropped bits; the rest is
  // cut off. Subnormal numbers are evenly spaced: there a random fraction is added and the sum is cut off.
  const auto normal = static_cast<int32_t>((static_cast<uint32_t>(magnitude) + random) & ~((1u << kRandomBits) - 1));
  const float quanta = FromBits(Select(magnitude < kSmallestNormal, magnitude, 0)) * (1 / kQuantum) + fraction;
  const int32_t small = Bits(static_cast<float>(static_cast<int32_t>(quanta)) * kQuantum);
  int32_t rounded = Select(magnitude < kSmallestNormal, small, normal);
  if constexpr (to == RoundTo::kHalves) rounded = Select(rounded > kLargestHalf, kLargestHalf, rounded);
  if constexpr (to == RoundTo::kHalvesOrNan) rounded = Select(rounded > kLargestHalf, kNan, rounded);
  rounded = Select(magnitude > kInfinite, magnitude, rounded);
  return FromBits(rounded | (Bits(value) & ~kMagnitude));
}

// Rounds each number up or down to a neighbour, with a probability by its distance. NaNs stay.
//
// The random bits of an element depend on the key, the site and its index alone.
class StochasticRounding {
 public:
  StochasticRounding(uint32_t first_key, uint32_t second_key, uint64_t site, RoundTo to);

  // Rounds the elements from `first` to `last`. The arrays may be the same.
  void Compute(const float* from, float* to, int64_t first, int64_t last) const;

 private:
  uint32_t first_;
  uint32_t second_;
  RoundTo to_;
};

}  // namespace tensorflow_ipu::core
