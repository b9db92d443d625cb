// Stochastic rounding of float32.
#pragma once

#include <cstdint>

namespace tensorflow_ipu::core {

// Constants of keys and random bits: the golden ratio, and the factors of a 32-bit finalizer with low bias (Wellons,
// Prospecting for Hash Functions, 2018).
constexpr uint32_t kGolden = 0x9e3779b9;
constexpr uint32_t kFirstFactor = 0x7feb352d;
constexpr uint32_t kSecondFactor = 0x846ca68b;

// The possible results of rounding float32: float16 values, or integers without a sign. The last two kinds are for
// float32 results only.
enum class RoundTo {
  kHalves,           // A value beyond the largest half becomes the largest half.
  kHalvesOrNan,      // A value beyond the largest half becomes NaN.
  kHalvesAndBeyond,  // As if float16 had a larger range of exponents; infinities stay.
  kIntegers,
};

// An elementwise operation in float32, whose result is rounded.
enum class Operation { kNone, kAdd, kSubtract, kMultiply, kDivide, kSqrt };

// An array of float32 or float16. An operand may be a single value, which is used for all elements.
struct Numbers {
  void* data = nullptr;
  bool half = false;
  bool one = false;
};

// Computes an operation of two operands, or only of `a`, and rounds each result to one of its two neighbours. The
// probability of a neighbour is proportional to the distance of the result from the other neighbour. NaNs stay. The
// result may be an operand of the same type.
//
// The random bits of an element depend only on the key, the site and its index.
struct StochasticRounding {
  uint32_t key[2];
  uint64_t site;
  RoundTo to;
  Operation operation;
  Numbers a, b, result;

  // Computes the elements from `first` to `last`.
  void Compute(int64_t first, int64_t last) const;
};

}  // namespace tensorflow_ipu::core
