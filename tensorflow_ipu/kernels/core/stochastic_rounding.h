// Stochastic rounding of float32.
#pragma once

#include <cstdint>

namespace tensorflow_ipu::core {

// Constants of keys and random bits: the golden ratio, and those of a 32-bit finalizer with low bias (Wellons,
// Prospecting for Hash Functions, 2018).
constexpr uint32_t kGolden = 0x9e3779b9;
constexpr uint32_t kFirstFactor = 0x7feb352d;
constexpr uint32_t kSecondFactor = 0x846ca68b;

// What numbers are rounded to: to numbers of float16, or to integers, which keeps no sign.
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

// Rounds each number up or down to a neighbour, with a probability by its distance. NaNs stay.
//
// The random bits of an element depend on the key, the site and its index alone.
class StochasticRounding {
 public:
  StochasticRounding(uint32_t first_key, uint32_t second_key, uint64_t site, RoundTo to,
                     Operation operation = Operation::kNone);

  // Computes and rounds the elements from `first` to `last`. Operations of one operand ignore `b`. The result may be
  // an operand of the same type.
  void Compute(Numbers a, Numbers b, Numbers result, int64_t first, int64_t last) const;

 private:
  uint32_t first_;
  uint32_t second_;
  RoundTo to_;
  Operation operation_;
};

}  // namespace tensorflow_ipu::core
