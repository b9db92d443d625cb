// Matrix products and convolutions of half-precision numbers, accumulated like the machine's multiplier does.
#pragma once

#include <array>
#include <cstdint>

namespace tensorflow_ipu::core {

// Products that the multiplier adds up before it adds them to a partial sum in memory.
constexpr int64_t kBlockOfProducts = 16;

// The type of the partial sums.
enum class Partials { kHalf, kFloat };

// What a half partial sum beyond the largest number becomes.
enum class Overflow { kInfinite, kLargest, kNan };

// The type in memory. Floats have to be values of halves.
enum class Element { kHalf, kFloat };

// A convolution of three dimensions in groups, or what is one: a convolution of fewer, or a product of matrices, which
// has no space at all.
//
//   left   images x in[0] x in[1] x in[2] x channels, `group_left` elements from a group's channels to the next one's
//   right  filter[0] x filter[1] x filter[2] x channels x features, likewise
//   out    images x out[0] x out[1] x out[2] x features, likewise
//
// Each of the `images`, places and (in the filter) channels begins `..._stride` elements after the one before.
//
// The sum of an element of the result goes over the filter's places and the channels, in blocks of kBlockOfProducts:
//
//   channels a multiple of it   for each 16 channels { for each place { a block } }
//   otherwise                   the channels of all places, one place after the other, 16 at a time
//
// A block is added up in float, from 0 on and in order, and is added to the partial sum, which is rounded to its type:
// to nearest, ties to even; or, where there is a key, half partial sums to a neighbour by chance, in proportion to how
// near each is. The chance is a function of the key, the place in `out` and the number of the block. The result is the
// last partial sum, rounded once to the type of the result. What lies beside the input, or in a gap of it, is 0.
struct BlockedProducts {
  using Space = std::array<int64_t, 3>;

  int64_t groups, images, channels, features;
  Space in{1, 1, 1}, filter{1, 1, 1}, out{1, 1, 1};
  Space strides{1, 1, 1}, before{0, 0, 0}, input_gaps{1, 1, 1}, filter_gaps{1, 1, 1};
  int64_t left_stride, right_stride, out_stride;
  int64_t group_left, group_right, group_out;
  Partials partials;
  Overflow overflow;
  Element operands, result;
  const uint32_t* key = nullptr;  // Two words; null where partial sums are rounded to nearest.

  // Serialization of the geometry alone.
  static constexpr int64_t kNumbers = 31;
  void ToNumbers(int64_t* numbers) const;
  static BlockedProducts FromNumbers(const int64_t* numbers);

  // The work has so many independent parts.
  int64_t Parts() const;

  // An estimate.
  int64_t CyclesOfPart() const;

  void Compute(const void* left, const void* right, void* result, int64_t first, int64_t last) const;
};

// Results do not depend on the instructions.
enum class Instructions { kPlain, kAvx2, kAvx512 };

Instructions BestInstructions();

// For tests: the processor must have these instructions. Not thread-safe.
void UseInstructions(Instructions instructions);

}  // namespace tensorflow_ipu::core
