#include "tensorflow_ipu/kernels/numerics/partials.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

#include "tensorflow_ipu/kernels/numerics/half.h"
#include "tensorflow_ipu/kernels/numerics/processor.h"
#include "tensorflow_ipu/kernels/numerics/stochastic_rounding.h"

namespace tensorflow_ipu::core {

namespace {

// The maximum size of a tile.
constexpr int64_t kTileRows = 6;
constexpr int64_t kTileColumns = 16;
// The strides of the partial sums and of the left operand.
constexpr int64_t kSumsStride = 128;
constexpr int64_t kDepth = 256;
constexpr float kLargestHalf = 65504.0f;

// Adds `depth` products to each partial sum of a tile of `rows` x kTileColumns; `rows` is a template parameter. `right`
// has a row of kTileColumns values for each product. `right` and `sums` are aligned to 64 bytes. With `half`, partial
// sums are rounded to half precision, and `overflow` applies.
//
// The product of two halves is exact in float, so fused and separate sums agree. No sum of such products is subnormal,
// so flushing subnormal values changes nothing.
using TileOf = void (*)(const float* left, const float* right, int64_t depth, bool half, Overflow overflow,
                        float* sums);

// Applies `overflow` to a value that was rounded as if half precision had a larger range of exponents.
inline float Limited(float rounded, Overflow overflow) {
  if (!(std::fabs(rounded) > kLargestHalf)) return rounded;
  if (overflow == Overflow::kNan) return std::numeric_limits<float>::quiet_NaN();
  const bool largest = overflow == Overflow::kLargest;
  return std::copysign(largest ? kLargestHalf : std::numeric_limits<float>::infinity(), rounded);
}

// Vectors of one processor's size, which the compiler lowers to its instructions.
template <std::size_t bytes>
struct Lanes {
  using Floats __attribute__((vector_size(bytes), may_alias)) = float;
  using Ints __attribute__((vector_size(bytes))) = int32_t;
  static constexpr int64_t kCount = bytes / sizeof(float);
};

// The same as `Limited(F16::Load(F16::Store(sum)), overflow)`.
template <typename L>
[[gnu::always_inline]] inline void RoundToHalves(typename L::Floats& sums, Overflow overflow) {
  using Floats = typename L::Floats;
  using Ints = typename L::Ints;
  const Ints bits = reinterpret_cast<Ints>(sums);
  Ints magnitude = bits & 0x7fffffff;
  const Floats value = reinterpret_cast<Floats>(magnitude);
  Ints normal = (magnitude + 0xfff + ((magnitude >> 13) & 1)) & ~0x1fff;
  const Floats subnormal = (value + 0.5f) - 0.5f;  // Rounds to the last bit of the half.
  Floats rounded = value < 0x1p-14f ? subnormal : reinterpret_cast<Floats>(normal);
  const float limit = Limited(std::numeric_limits<float>::infinity(), overflow);
  rounded = rounded > kLargestHalf ? Floats{} + limit : rounded;
  rounded = value == value ? rounded : value;
  Ints result = reinterpret_cast<Ints>(rounded) | (bits & ~0x7fffffff);
  sums = reinterpret_cast<Floats>(result);
}

template <typename L, int64_t rows>
[[gnu::always_inline]] inline void AddRows(const float* left, const float* right, int64_t depth, bool half,
                                           Overflow overflow, float* sums) {
  using Floats = typename L::Floats;
  constexpr int64_t kVectors = kTileColumns / L::kCount;
  for (int64_t begin = 0; begin < depth; begin += kBlockOfProducts) {
    Floats block[rows][kVectors] = {};
    const int64_t end = std::min(depth, begin + kBlockOfProducts);
    for (int64_t k = begin; k < end; ++k) {
      const auto* const values = reinterpret_cast<const Floats*>(right + k * kTileColumns);
#pragma GCC unroll 6
      for (int64_t row = 0; row < rows; ++row) {
#pragma GCC unroll 4
        for (int64_t i = 0; i < kVectors; ++i) block[row][i] += left[row * kDepth + k] * values[i];
      }
    }
#pragma GCC unroll 6
    for (int64_t row = 0; row < rows; ++row) {
      auto* const partials = reinterpret_cast<Floats*>(sums + row * kSumsStride);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kVectors; ++i) {
        block[row][i] += partials[i];
        if (half) RoundToHalves<L>(block[row][i], overflow);
        partials[i] = block[row][i];
      }
    }
  }
}

void WidenPlain(const uint16_t* from, int64_t count, float* to) {
  for (; count >= 8; count -= 8, from += 8, to += 8) {  // GCC vectorizes loops of a fixed length.
    for (int i = 0; i < 8; ++i) to[i] = F16::Load(from[i]);
  }
  for (int64_t i = 0; i < count; ++i) to[i] = F16::Load(from[i]);
}

#if IPU_X86
// The compiler would convert by integer operations, and a product would take a third longer.
__attribute__((target("avx2,f16c"))) void WidenByF16c(const uint16_t* from, int64_t count, float* to) {
  for (; count >= 8; count -= 8, from += 8, to += 8) {
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  WidenPlain(from, count, to);
}
#endif

// The functions that are compiled for several processors.
struct Kernels {
  TileOf tiles[kTileRows];  // By the number of rows minus 1.
  void (*widen)(const uint16_t* from, int64_t count, float* to);
};

#define IPU_KERNELS(name, bytes, widen, target)                                                                \
  template <int64_t rows>                                                                                      \
  target void name(const float* left, const float* right, int64_t depth, bool half, Overflow o, float* sums) { \
    AddRows<Lanes<bytes>, rows>(left, right, depth, half, o, sums);                                            \
  }                                                                                                            \
  constexpr Kernels k##name{{name<1>, name<2>, name<3>, name<4>, name<5>, name<6>}, widen};
IPU_KERNELS(Plain, 16, WidenPlain, )
#if IPU_X86
IPU_KERNELS(Avx2, 32, WidenByF16c, __attribute__((target("avx2,fma"))))
IPU_KERNELS(Avx512, 64, WidenByF16c, __attribute__((target("avx512f,avx2,fma"))))
#endif
#undef IPU_KERNELS

// The size of a part, which fits into the second-level cache.
constexpr int64_t kPartRows = 48;
constexpr int64_t kPartColumns = kSumsStride;
// With fewer features, rows and columns are swapped, so that a vector contains rows.
constexpr int64_t kFewFeatures = 8;

static_assert(kPartRows % kTileRows == 0 && kPartColumns % kTileColumns == 0 && kDepth % kBlockOfProducts == 0);

int64_t DividedUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t ProductOf(const BlockedProducts::Space& space) { return space[0] * space[1] * space[2]; }

Instructions& Chosen() {
  static Instructions chosen = BestInstructions();
  return chosen;
}

const Kernels& KernelsFor(Instructions instructions) {
#if IPU_X86
  if (instructions == Instructions::kAvx512) return kAvx512;
  if (instructions == Instructions::kAvx2) return kAvx2;
#endif
  static_cast<void>(instructions);
  return kPlain;
}

// The number of mantissa bits that a float has and a half lacks.
constexpr int kDropped = 13;
constexpr float kSmallestNormalHalf = 0x1p-14f, kHalfQuantum = 0x1p-24f;

// Rounds like `StochasticRounding`, whose vectorized form takes a quarter more time here. `random` has kDropped bits.
float RoundedAtRandom(float value, uint32_t random, Overflow overflow) {
  const float magnitude = std::fabs(value);
  float rounded = value;
  if (magnitude < kSmallestNormalHalf) {
    const float fraction = static_cast<float>(random) * (1.0f / (1 << kDropped));
    rounded = std::copysign(std::floor(magnitude / kHalfQuantum + fraction) * kHalfQuantum, value);
  } else if (magnitude <= kLargestHalf + 32) {  // Larger values overflow in any case.
    rounded = FromBits((Bits(value) + static_cast<int32_t>(random)) & ~((1 << kDropped) - 1));
  }
  return Limited(rounded, overflow);
}

// Returns kDropped random bits. Each step is a bijection that mixes high bits into low ones.
uint32_t RandomBits(uint32_t place, uint32_t block, const uint32_t* key) {
  uint32_t x = place * kGolden + key[0];
  x = (x ^ (x >> 16)) * kFirstFactor + key[1];
  x += block * 0x85ebca6bu;
  x = (x ^ (x >> 15)) * kSecondFactor;
  x = (x ^ (x >> 16)) * kFirstFactor;
  return x >> (32 - kDropped);
}

// Adjacent channels of one place of the filter, in the order of the sum.
struct Run {
  BlockedProducts::Space spread;  // The offset of the place in the input, including gaps.
  int64_t row;                    // The row of the right operand.
  int64_t channel, begin, count;
};

struct alignas(64) Scratch {
  float sums[kPartRows * kPartColumns];
  float rows[kPartColumns * kDepth];     // kDepth for each row.
  float columns[kPartColumns * kDepth];  // kTileColumns for each product, panel by panel.
};

template <typename T>
class Worker {
 public:
  Worker(const BlockedProducts& product, const T* left, const T* right, void* result)
      : product_(product),
        left_(left),
        right_(right),
        result_(result),
        kernels_(KernelsFor(Chosen())),
        places_(ProductOf(product.out)),
        taps_(ProductOf(product.filter)),
        depth_(taps_ * product.channels),
        by_group_(product.channels % kBlockOfProducts == 0 && taps_ > 1) {}

  void Compute(int64_t group, int64_t image_place, int64_t rows, int64_t feature, int64_t columns) {
    const bool swapped = product_.features < kFewFeatures && rows > columns;
    std::memset(scratch_->sums, 0, sizeof(scratch_->sums));
    for (int64_t first = 0; first < depth_; first += kDepth) {
      const int64_t depth = std::min(kDepth, depth_ - first);
      FindRuns(first, depth);
      Read(group, image_place, rows, feature, columns, depth, swapped);
      const int64_t down = swapped ? columns : rows;
      const int64_t across = swapped ? rows : columns;
      for (int64_t column = 0; column < across; column += kTileColumns) {
        for (int64_t row = 0; row < down; row += kTileRows) {
          const int64_t tile_rows = std::min(kTileRows, down - row);
          const TileOf tile = kernels_.tiles[tile_rows - 1];
          float* const sums = scratch_->sums + row * kSumsStride + column;
          if (product_.key == nullptr || product_.partials == Partials::kFloat) {
            tile(scratch_->rows + row * kDepth, scratch_->columns + column * kDepth, depth,
                 product_.partials == Partials::kHalf, product_.overflow, sums);
            continue;
          }
          const int64_t place = image_place * product_.out_stride + group * product_.group_out + feature;
          const int64_t down_step = swapped ? 1 : product_.out_stride;
          const int64_t across_step = swapped ? product_.out_stride : 1;
          for (int64_t begin = 0; begin < depth; begin += kBlockOfProducts) {
            tile(scratch_->rows + row * kDepth + begin, scratch_->columns + column * kDepth + begin * kTileColumns,
                 std::min(kBlockOfProducts, depth - begin), /*half=*/false, product_.overflow, sums);
            RoundAtRandom(place + row * down_step + column * across_step, down_step, across_step, tile_rows,
                          (first + begin) / kBlockOfProducts, sums);
          }
        }
      }
    }
    for (int64_t row = 0; row < rows; ++row) Write(group, image_place + row, row, feature, columns, swapped);
  }

 private:
  void Widen(const T* from, int64_t count, float* to) const {
    if constexpr (std::is_same_v<T, float>) {
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
    } else {
      kernels_.widen(from, count, to);
    }
  }

  void RoundAtRandom(int64_t place, int64_t down_step, int64_t across_step, int64_t rows, int64_t block, float* sums) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < kTileColumns; ++column) {
        float& sum = sums[row * kSumsStride + column];
        const auto element = static_cast<uint32_t>(place + row * down_step + column * across_step);
        sum = RoundedAtRandom(sum, RandomBits(element, static_cast<uint32_t>(block), product_.key), product_.overflow);
      }
    }
  }

  void FindRuns(int64_t first, int64_t depth) {
    runs_count_ = 0;
    for (int64_t k = first; k < first + depth;) {
      const int64_t block = k / kBlockOfProducts;
      const int64_t tap = by_group_ ? block % taps_ : k / product_.channels;
      const int64_t channel =
          by_group_ ? block / taps_ * kBlockOfProducts + k % kBlockOfProducts : k % product_.channels;
      const int64_t available = by_group_ ? kBlockOfProducts - k % kBlockOfProducts : product_.channels - channel;
      Run& run = runs_[runs_count_++];
      run.row = tap * product_.channels + channel;
      run.channel = channel;
      run.begin = k - first;
      run.count = std::min(available, depth - run.begin);
      const BlockedProducts::Space& filter = product_.filter;
      run.spread = {tap / (filter[1] * filter[2]), tap / filter[2] % filter[1], tap % filter[2]};
      for (int i = 0; i < 3; ++i) run.spread[i] *= product_.filter_gaps[i];
      k += run.count;
    }
  }

  // Returns the address of a run's first channel; null if the input is 0 there.
  const T* At(const T* image, const BlockedProducts::Space& corner, const Run& run) const {
    int64_t offset = 0;
    for (int i = 0; i < 3; ++i) {
      int64_t place = corner[i] + run.spread[i];
      if (place < 0) return nullptr;
      if (product_.input_gaps[i] > 1) {
        if (place % product_.input_gaps[i] != 0) return nullptr;
        place /= product_.input_gaps[i];
      }
      if (place >= product_.in[i]) return nullptr;
      offset = offset * product_.in[i] + place;
    }
    return image + offset * product_.left_stride + run.channel;
  }

  void Read(int64_t group, int64_t image_place, int64_t rows, int64_t feature, int64_t columns, int64_t depth,
            bool swapped) {
    const T* const of_group = left_ + group * product_.group_left;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t place = (image_place + row) % places_;
      const T* const image = of_group + (image_place + row) / places_ * image_;
      BlockedProducts::Space corner = {place / (product_.out[1] * product_.out[2]),
                                       place / product_.out[2] % product_.out[1], place % product_.out[2]};
      for (int i = 0; i < 3; ++i) corner[i] = corner[i] * product_.strides[i] - product_.before[i];
      float* const to = swapped ? line_ : scratch_->rows + row * kDepth;
      for (int64_t i = 0; i < runs_count_; ++i) {
        const Run& run = runs_[i];
        const T* const from = At(image, corner, run);
        if (from == nullptr) {
          std::fill_n(to + run.begin, run.count, 0.0f);
        } else {
          Widen(from, run.count, to + run.begin);
        }
      }
      if (swapped) {
        float* const panel = scratch_->columns + row / kTileColumns * kTileColumns * kDepth + row % kTileColumns;
        for (int64_t k = 0; k < depth; ++k) panel[k * kTileColumns] = line_[k];
      }
    }
    if (swapped) Clear(rows);
    for (int64_t i = 0; i < runs_count_; ++i) {
      const Run& run = runs_[i];
      const T* from = right_ + group * product_.group_right + feature + run.row * product_.right_stride;
      for (int64_t k = run.begin; k < run.begin + run.count; ++k, from += product_.right_stride) {
        if (swapped) {
          Widen(from, columns, line_);
          for (int64_t column = 0; column < columns; ++column) scratch_->rows[column * kDepth + k] = line_[column];
          continue;
        }
        float* to = scratch_->columns + k * kTileColumns;
        for (int64_t column = 0; column < columns; column += kTileColumns, to += kTileColumns * kDepth) {
          Widen(from + column, std::min(kTileColumns, columns - column), to);
        }
      }
    }
    if (!swapped) Clear(columns);
  }

  // Fills the unused columns of the last panel with zeros: computing with old values there may be slow.
  void Clear(int64_t across) {
    const int64_t filled = across % kTileColumns;
    if (filled == 0) return;
    float* const panel = scratch_->columns + across / kTileColumns * kTileColumns * kDepth;
    for (int64_t k = 0; k < kDepth; ++k)
      std::fill(panel + k * kTileColumns + filled, panel + (k + 1) * kTileColumns, 0.0f);
  }

  void Write(int64_t group, int64_t image_place, int64_t row, int64_t feature, int64_t columns, bool swapped) {
    const int64_t offset = image_place * product_.out_stride + group * product_.group_out + feature;
    const float* from = scratch_->sums + row * kSumsStride;
    if (swapped) {
      for (int64_t column = 0; column < columns; ++column) line_[column] = scratch_->sums[column * kSumsStride + row];
      from = line_;
    }
    if (product_.result == Element::kFloat) {
      std::memcpy(static_cast<float*>(result_) + offset, from, static_cast<std::size_t>(columns) * sizeof(float));
      return;
    }
    uint16_t* const to = static_cast<uint16_t*>(result_) + offset;
    for (int64_t column = 0; column < columns; ++column) to[column] = F16::Store(from[column]);
  }

  const BlockedProducts& product_;
  const T* const left_;
  const T* const right_;
  void* const result_;
  const Kernels& kernels_;
  const int64_t places_, taps_, depth_;
  const int64_t image_ = ProductOf(product_.in) * product_.left_stride;  // The distance between two images.
  const bool by_group_;
  const std::unique_ptr<Scratch> scratch_{new Scratch};
  float line_[kDepth];
  Run runs_[kDepth];  // Each run has at least one product.
  int64_t runs_count_ = 0;
};

}  // namespace

Instructions BestInstructions() {
#if IPU_X86
  unsigned a = 0, b = 0, c = 0, d = 0;  // Clang 14 does not know the builtin's "f16c".
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  const bool avx2 = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && __builtin_cpu_supports("avx512f")) return Instructions::kAvx512;
  if (avx2) return Instructions::kAvx2;
#endif
  return Instructions::kPlain;
}

void UseInstructions(Instructions instructions) { Chosen() = instructions; }

void BlockedProducts::ToNumbers(int64_t* numbers) const {
  for (const int64_t number : {groups, images, channels, features, left_stride, right_stride, out_stride, group_left,
                               group_right, group_out}) {
    *numbers++ = number;
  }
  for (const Space& space : {in, filter, out, strides, before, input_gaps, filter_gaps}) {
    numbers = std::copy(space.begin(), space.end(), numbers);
  }
}

BlockedProducts BlockedProducts::FromNumbers(const int64_t* numbers) {
  BlockedProducts product{};
  for (int64_t* const number :
       {&product.groups, &product.images, &product.channels, &product.features, &product.left_stride,
        &product.right_stride, &product.out_stride, &product.group_left, &product.group_right, &product.group_out}) {
    *number = *numbers++;
  }
  for (Space* const space : {&product.in, &product.filter, &product.out, &product.strides, &product.before,
                             &product.input_gaps, &product.filter_gaps}) {
    std::copy_n(numbers, 3, space->begin());
    numbers += 3;
  }
  return product;
}

int64_t BlockedProducts::CyclesOfPart() const {
  const int64_t rows = std::min(kPartRows, images * ProductOf(out));
  return rows * std::min(kPartColumns, features) * channels * ProductOf(filter) / kTileColumns + 1;
}

int64_t BlockedProducts::Parts() const {
  return groups * DividedUp(images * ProductOf(out), kPartRows) * DividedUp(features, kPartColumns);
}

void BlockedProducts::Compute(const void* left, const void* right, void* result, int64_t first, int64_t last) const {
  const auto compute = [&](auto worker) {
    const int64_t rows = images * ProductOf(out);
    const int64_t down = DividedUp(rows, kPartRows);
    const int64_t across = DividedUp(features, kPartColumns);
    for (int64_t part = first; part < last; ++part) {
      const int64_t row = part / across % down * kPartRows;
      const int64_t column = part % across * kPartColumns;
      worker.Compute(part / across / down, row, std::min(kPartRows, rows - row), column,
                     std::min(kPartColumns, features - column));
    }
  };
  if (operands == Element::kHalf) {
    compute(Worker<uint16_t>(*this, static_cast<const uint16_t*>(left), static_cast<const uint16_t*>(right), result));
  } else {
    compute(Worker<float>(*this, static_cast<const float*>(left), static_cast<const float*>(right), result));
  }
}

}  // namespace tensorflow_ipu::core
