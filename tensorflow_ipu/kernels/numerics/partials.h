// Matrix products and convolutions of half-precision values, accumulated like the machine's multiplier does.
#pragma once

#include <array>
#include <cstdint>

namespace tensorflow_ipu::core {

// The number of products that the multiplier adds up before it adds them to a partial sum in memory.
constexpr int64_t kBlockOfProducts = 16;

// The type of the partial sums.
enum class Partials { kHalf, kFloat };

// The result of a half partial sum whose magnitude exceeds the largest half.
enum class Overflow { kInfinite, kLargest, kNan };

// The type in memory. Floats must be values that a half can represent.
enum class Element { kHalf, kFloat };

// A convolution of three dimensions in groups, or an operation that is a special case of it: a convolution of fewer
// dimensions, or a product of matrices, whose spatial sizes are all 1.
//
//   left   images x in[0] x in[1] x in[2] x channels; `group_left` elements between the channels of adjacent groups
//   right  filter[0] x filter[1] x filter[2] x channels x features; likewise
//   out    images x out[0] x out[1] x out[2] x features; likewise
//
// Adjacent rows begin `..._stride` elements apart. A row has the channels or features of one position; in `right`, the
// features of one position and channel.
//
// An element of the result is a sum over the filter's positions and the channels, in blocks of 16 (kBlockOfProducts):
//
//   channels divisible by 16   for each 16 channels { for each position { a block } }
//   otherwise                  the channels of all positions, one position after the other, 16 at a time
//
// A block is summed in float, in order and starting from 0. It is added to the partial sum, which is rounded to its
// type, to nearest with ties to even. If there is a key, half partial sums are rounded stochastically; see
// `StochasticRounding`. The random bits depend on the key, the position in `out` and the index of the block. The result
// is the last partial sum, rounded once to the type of the result. Values outside of the input, or in the gaps of a
// dilated input, are 0.
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
  const uint32_t* key = nullptr;  // Two 32-bit values; null if partial sums are rounded to nearest.

  // Serializes only the geometry.
  static constexpr int64_t kNumbers = 31;
  void ToNumbers(int64_t* numbers) const;
  static BlockedProducts FromNumbers(const int64_t* numbers);

  // Returns the number of independent parts of the work.
  int64_t Parts() const;

  // Returns an estimate of the processor cycles that a part takes.
  int64_t CyclesOfPart() const;

  void Compute(const void* left, const void* right, void* result, int64_t first, int64_t last) const;
};

// The instructions that Compute uses. They do not affect results.
enum class Instructions { kPlain, kAvx2, kAvx512 };

Instructions BestInstructions();

// Used by tests. The processor must support these instructions. Not thread-safe.
void UseInstructions(Instructions instructions);

}  // namespace tensorflow_ipu::core
