// Stochastic rounding of float32.
#pragma once

#include <cstdint>

namespace tensorflow_ipu::core {

// Constants of keys and random bits: the golden ratio, and those of a 32-bit finalizer with low bias (Wellons,
// Prospecting for Hash Functions, 2018).
constexpr uint32_t kGolden = 0x9e3779b9;
constexpr uint32_t kFirstFactor = 0x7feb352d;
constexpr uint32_t kSecondFactor = 0x846ca68b;

// What numbers are rounded to: numbers of float16, or integers, which keeps no sign. The last two are for float32.
enum class RoundTo {
  kHalves,           // Beyond the largest, the largest.
  kHalvesOrNan,      // Beyond the largest, a NaN.
  kHalvesAndBeyond,  // As if float16 had more exponents; infinities stay.
  kIntegers,
};

// An elementwise operation in float32, whose result is rounded.
enum class Operation { kNone, kAdd, kSubtract, kMultiply, kDivide, kSqrt };

// An array of float32 or float16; as an operand it may be one number for all elements.
struct Numbers {
  void* data = nullptr;
  bool half = false;
  bool one = false;
};

// Computes an operation of two operands, or of `a` alone, and rounds each result up or down to a neighbour, with a
// probability by its distance. NaNs stay. The result may be an operand of the same type.
//
// The random bits of an element depend on the key, the site and its index alone.
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
