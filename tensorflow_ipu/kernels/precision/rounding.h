// From float32 to what float16 can hold, in float32: the last step of an operation of half precision.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_ROUNDING_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_ROUNDING_H_

#include <cstdint>

#include "tensorflow_ipu/kernels/precision/emit.h"

namespace tensorflow_ipu::precision {

// Two words, scalars of u32, from which the random bits of a computation come.
struct Key {
  Value first = nullptr;
  Value second = nullptr;
};

// The key of a part of what `key` is for: another one for each number, in the program and in what is in it.
Key KeyOf(const Emit& emit, Key key, uint64_t part);

// The key of the next iteration of a loop.
Key NextKey(const Emit& emit, Key key);

// For each element of `like` a number from 0 on, below 1, by chance, in steps of 2^-13.
Value RandomFraction(const Emit& emit, Value like, Key key, uint64_t site);

// `value` (float32) rounded up or down to a neighbour in float16, by chance, in proportion to how near each is. The
// chance is a function of the key, of `site` and of the place of the element: whoever computes the value again rounds
// it alike.
Value RoundStochastically(const Emit& emit, Value value, Key key, uint64_t site);

// `value` (float32) with what float16 has no number for as the machine has it: a NaN, or the largest number of the
// sign. A value that rounds to the nearest is above from 65520 on, one that is `rounded` above 65504. A NaN stays one.
Value Bounded(const Emit& emit, Value value, bool nan_on_overflow, bool rounded);

// A product (float32) that is to be rounded to the nearest number of float16, infinite where that is. Without it,
// processors that add what they multiply would do so here before the product is rounded, and no overflow would be seen.
Value Unfused(const Emit& emit, Value product);

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_ROUNDING_H_
