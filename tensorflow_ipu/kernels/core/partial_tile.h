// The inner loop of `partials.cc` for each set of instructions.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_PARTIAL_TILE_H_
#define TENSORFLOW_IPU_KERNELS_CORE_PARTIAL_TILE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tensorflow_ipu/kernels/core/half.h"
#include "tensorflow_ipu/kernels/core/partials.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define IPU_AVX2 __attribute__((target("avx2,fma,f16c")))
#define IPU_AVX512 __attribute__((target("avx512f,avx2,fma,f16c")))
#endif

namespace tensorflow_ipu::core {

// The size of a tile at most.
constexpr int64_t kTileRows = 6;
constexpr int64_t kTileColumns = 16;
// The strides of the partial sums and of the left operand.
constexpr int64_t kSumsStride = 128;
constexpr int64_t kDepth = 256;
constexpr float kLargestHalf = 65504.0f;

// Adds `depth` products to each partial sum of `rows` x kTileColumns. `right` has a row of kTileColumns for each
// product; it and `sums` are aligned to 64 bytes. With `half`, partial sums are rounded to half precision, and
// `overflow` applies.
//
// The product of two halves is exact in float, so fused and separate sums agree. No sum of such products is subnormal,
// so flushing them changes nothing.
using TileOf = void (*)(const float* left, const float* right, int64_t depth, int64_t rows, bool half,
                        Overflow overflow, float* sums);

inline float RoundedToHalf(float value, Overflow overflow) {
  const float rounded = F16::Load(F16::Store(value));
  if (overflow == Overflow::kInfinite || std::fabs(rounded) != std::numeric_limits<float>::infinity()) return rounded;
  return overflow == Overflow::kNan ? std::numeric_limits<float>::quiet_NaN() : std::copysign(kLargestHalf, rounded);
}

inline void PlainTile(const float* left, const float* right, int64_t depth, int64_t rows, bool half, Overflow overflow,
                      float* sums) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* const factors = left + row * kDepth;
    float* const partials = sums + row * kSumsStride;
    for (int64_t begin = 0; begin < depth; begin += kBlockOfProducts) {
      float block[kTileColumns] = {};
      const int64_t end = std::min(depth, begin + kBlockOfProducts);
      for (int64_t k = begin; k < end; ++k) {
        for (int64_t column = 0; column < kTileColumns; ++column) {
          block[column] += factors[k] * right[k * kTileColumns + column];
        }
      }
      for (int64_t column = 0; column < kTileColumns; ++column) block[column] += partials[column];
      if (half) {
        for (int64_t column = 0; column < kTileColumns; ++column)
          block[column] = RoundedToHalf(block[column], overflow);
      }
      std::memcpy(partials, block, sizeof(block));
    }
  }
}

#if defined(__x86_64__)

IPU_AVX2 inline __m256 RoundedToHalves(__m256 value, Overflow overflow) {
  const __m256 rounded = _mm256_cvtph_ps(_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  if (overflow == Overflow::kInfinite) return rounded;
  if (overflow == Overflow::kLargest) {  // A NaN is the second operand, and stays.
    const __m256 largest = _mm256_set1_ps(kLargestHalf), least = _mm256_set1_ps(-kLargestHalf);
    return _mm256_max_ps(least, _mm256_min_ps(largest, rounded));
  }
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), rounded);
  const __m256 above = _mm256_cmp_ps(magnitude, _mm256_set1_ps(kLargestHalf), _CMP_GT_OQ);
  return _mm256_or_ps(rounded, _mm256_and_ps(above, _mm256_set1_ps(std::numeric_limits<float>::quiet_NaN())));
}

template <int64_t rows>
IPU_AVX2 inline void Avx2Rows(const float* left, const float* right, int64_t depth, bool half, Overflow overflow,
                              float* sums) {
  for (int64_t begin = 0; begin < depth; begin += kBlockOfProducts) {
    __m256 low[rows], high[rows];
    for (int64_t row = 0; row < rows; ++row) low[row] = high[row] = _mm256_setzero_ps();
    const int64_t end = std::min(depth, begin + kBlockOfProducts);
    for (int64_t k = begin; k < end; ++k) {
      const __m256 first = _mm256_load_ps(right + k * kTileColumns);
      const __m256 second = _mm256_load_ps(right + k * kTileColumns + 8);
#pragma GCC unroll 6
      for (int64_t row = 0; row < rows; ++row) {
        const __m256 factor = _mm256_broadcast_ss(left + row * kDepth + k);
        low[row] = _mm256_fmadd_ps(factor, first, low[row]);
        high[row] = _mm256_fmadd_ps(factor, second, high[row]);
      }
    }
#pragma GCC unroll 6
    for (int64_t row = 0; row < rows; ++row) {
      float* const partials = sums + row * kSumsStride;
      const __m256 first = _mm256_add_ps(_mm256_load_ps(partials), low[row]);
      const __m256 second = _mm256_add_ps(_mm256_load_ps(partials + 8), high[row]);
      _mm256_store_ps(partials, half ? RoundedToHalves(first, overflow) : first);
      _mm256_store_ps(partials + 8, half ? RoundedToHalves(second, overflow) : second);
    }
  }
}

template <int64_t rows>
IPU_AVX512 inline void Avx512Rows(const float* left, const float* right, int64_t depth, bool half, Overflow overflow,
                                  float* sums) {
  for (int64_t begin = 0; begin < depth; begin += kBlockOfProducts) {
    __m512 block[rows];
    for (int64_t row = 0; row < rows; ++row) block[row] = _mm512_setzero_ps();
    const int64_t end = std::min(depth, begin + kBlockOfProducts);
    for (int64_t k = begin; k < end; ++k) {
      const __m512 values = _mm512_load_ps(right + k * kTileColumns);
#pragma GCC unroll 6
      for (int64_t row = 0; row < rows; ++row) {
        block[row] = _mm512_fmadd_ps(_mm512_set1_ps(left[row * kDepth + k]), values, block[row]);
      }
    }
#pragma GCC unroll 6
    for (int64_t row = 0; row < rows; ++row) {
      float* const partials = sums + row * kSumsStride;
      const __m512 sum = _mm512_add_ps(_mm512_load_ps(partials), block[row]);
      if (half) {
        // GCC 12 warns of uninitialized variables in the forms without a mask.
        constexpr __mmask16 kAll = 0xffff;
        const __m256i half_sum = _mm512_maskz_cvtps_ph(kAll, sum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        __m512 rounded = _mm512_maskz_cvtph_ps(kAll, half_sum);
        if (overflow == Overflow::kLargest) {
          rounded = _mm512_maskz_min_ps(kAll, _mm512_set1_ps(kLargestHalf), rounded);
          rounded = _mm512_maskz_max_ps(kAll, _mm512_set1_ps(-kLargestHalf), rounded);
        } else if (overflow == Overflow::kNan) {
          const __mmask16 above = _mm512_cmp_ps_mask(_mm512_abs_ps(rounded), _mm512_set1_ps(kLargestHalf), _CMP_GT_OQ);
          rounded = _mm512_mask_mov_ps(rounded, above, _mm512_set1_ps(std::numeric_limits<float>::quiet_NaN()));
        }
        _mm512_store_ps(partials, rounded);
      } else {
        _mm512_store_ps(partials, sum);
      }
    }
  }
}

#define IPU_TILE(name, target, one)                                                                      \
  target inline void name(const float* left, const float* right, int64_t depth, int64_t rows, bool half, \
                          Overflow overflow, float* sums) {                                              \
    switch (rows) {                                                                                      \
      case 1:                                                                                            \
        return one<1>(left, right, depth, half, overflow, sums);                                         \
      case 2:                                                                                            \
        return one<2>(left, right, depth, half, overflow, sums);                                         \
      case 3:                                                                                            \
        return one<3>(left, right, depth, half, overflow, sums);                                         \
      case 4:                                                                                            \
        return one<4>(left, right, depth, half, overflow, sums);                                         \
      case 5:                                                                                            \
        return one<5>(left, right, depth, half, overflow, sums);                                         \
      default:                                                                                           \
        return one<6>(left, right, depth, half, overflow, sums);                                         \
    }                                                                                                    \
  }
IPU_TILE(Avx2Tile, IPU_AVX2, Avx2Rows)
IPU_TILE(Avx512Tile, IPU_AVX512, Avx512Rows)
#undef IPU_TILE

#endif

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_PARTIAL_TILE_H_
