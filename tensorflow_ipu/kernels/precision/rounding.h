// Rounds values of float32 to what float16 can hold, as the last step of an operation of half precision.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_ROUNDING_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_ROUNDING_H_

#include <cstdint>

#include "tensorflow_ipu/kernels/precision/emit.h"

namespace tensorflow_ipu::precision {

// Two scalars of u32 that seed the random bits of a computation.
struct Key {
  Value first = nullptr;
  Value second = nullptr;
};

// The key of part number `part` of what has `key`; parts have different keys.
Key KeyOf(const Emit& emit, Key key, uint64_t part);

// The key of the next iteration of a loop.
Key NextKey(const Emit& emit, Key key);

// A random number in [0, 1) for each element of `like`, in steps of 2^-13.
Value RandomFraction(const Emit& emit, Value like, Key key, uint64_t site);

// Rounds `value` (float32) up or down to a neighbour in float16, with a probability by its distance. The random bits
// depend on the key, `site` and the index of the element alone, so that recomputing the value rounds it alike.
Value RoundStochastically(const Emit& emit, Value value, Key key, uint64_t site);

// Replaces elements of `value` (float32) that overflow float16 as the machine does: by NaN, or by the largest number of
// the same sign. `rounded` values overflow above 65504, others from 65520 on. NaNs stay.
Value Bounded(const Emit& emit, Value value, bool nan_on_overflow, bool rounded);

// Keeps a product (float32) from being fused with an addition before it is rounded to float16, which would hide an
// overflow. Overflow gives infinity.
Value Unfused(const Emit& emit, Value product);

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_ROUNDING_H_
