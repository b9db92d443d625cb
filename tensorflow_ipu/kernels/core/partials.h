// Products of matrices and convolutions of half-precision numbers, summed up as the machine's multiplier does it.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_PARTIALS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_PARTIALS_H_

#include <array>
#include <cstdint>

namespace tensorflow_ipu::core {

// How many products the machine's multiplier adds up before it adds them to a partial sum in memory.
constexpr int64_t kBlockOfProducts = 16;

// In which type the partial sums are kept.
enum class Partials { kHalf, kFloat };

// What a half partial sum becomes that is beyond the largest number: infinite, that number, or a NaN.
enum class Overflow { kInfinite, kLargest, kNan };

// The type of elements in memory. Floats have to be the values of halves: what was widened, and what is to be rounded
// by somebody else.
enum class Element { kHalf, kFloat };

// A convolution of three dimensions in groups, or what is one: a convolution of fewer, or a product of matrices, which
// has no space at all.
//
//   left   images x in[0] x in[1] x in[2] x channels, `group_left` elements from a group's channels to the next one's
//   right  filter[0] x filter[1] x filter[2] x channels x features, likewise
//   out    images x out[0] x out[1] x out[2] x features, likewise
//
// Each of the `images`, places and (in the filter) channels begins `..._stride` elements behind the one before.
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

  // All of it as numbers but how it is computed, for those who write it down, and back.
  static constexpr int64_t kNumbers = 31;
  void ToNumbers(int64_t* numbers) const;
  static BlockedProducts FromNumbers(const int64_t* numbers);

  // Into how many parts the work is divided, which may be done in any order, and at once.
  int64_t Parts() const;

  // About how many cycles a part takes.
  int64_t CyclesOfPart() const;

  // Does the parts from `first` to before `last`.
  void Compute(const void* left, const void* right, void* result, int64_t first, int64_t last) const;
};

// The instructions that Compute may use. Results do not depend on them.
enum class Instructions { kPlain, kAvx2, kAvx512 };

// The most that this processor has.
Instructions BestInstructions();

// Has all products use these, which the processor has; for tests. Not thread-safe.
void UseInstructions(Instructions instructions);

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_PARTIALS_H_
