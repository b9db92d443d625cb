#include "tensorflow_ipu/kernels/core/stochastic_rounding.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "tensorflow_ipu/kernels/core/processor.h"

namespace tensorflow_ipu::core {

namespace {

constexpr uint32_t kGolden = 0x9e3779b9u;

// Constants of a 32-bit finalizer with low bias: Wellons, Prospecting for Hash Functions, 2018.
constexpr uint32_t kFirstFactor = 0x7feb352du;
constexpr uint32_t kSecondFactor = 0x846ca68bu;

uint32_t Mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * kFirstFactor;
  x = (x ^ (x >> 15)) * kSecondFactor;
  return x ^ (x >> 16);
}

// Blocks of a fixed length in arrays of their own: GCC vectorizes no other loop at -O2.
constexpr int64_t kBlock = 64;

template <RoundTo to>
[[gnu::always_inline]] inline void Round(uint32_t first, uint32_t second, const float* from, float* result,
                                         int64_t begin, int64_t end) {
  float block[kBlock] = {};
  for (int64_t at = begin; at < end; at += kBlock) {
    const auto bytes = static_cast<std::size_t>(std::min(kBlock, end - at)) * sizeof(float);
    std::memcpy(block, from + at, bytes);
    const auto index = static_cast<uint32_t>(at);
    for (uint32_t i = 0; i < kBlock; ++i) {
      uint32_t x = (index + i) * kGolden + first;
      x = (x ^ (x >> 16)) * kFirstFactor + second;
      x = (x ^ (x >> 15)) * kSecondFactor;
      block[i] = Rounded<to>(block[i], x >> (32 - kRandomBits));
    }
    std::memcpy(result + at, block, bytes);
  }
}

using Kernel = void (*)(uint32_t first, uint32_t second, const float* from, float* to, int64_t begin, int64_t end);

#define IPU_KERNEL(name, target)                                                                              \
  template <RoundTo to>                                                                                       \
  target void name(uint32_t first, uint32_t second, const float* from, float* result, int64_t b, int64_t e) { \
    Round<to>(first, second, from, result, b, e);                                                             \
  }
IPU_KERNEL(Plain, )
#if IPU_X86
IPU_KERNEL(ByAvx2, __attribute__((target("avx2"))))
IPU_KERNEL(ByAvx512, __attribute__((target("avx512f,avx512dq,avx512vl"))))
#endif
#undef IPU_KERNEL

template <RoundTo to>
Kernel Best() {
#if IPU_X86
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return ByAvx512<to>;
  if (__builtin_cpu_supports("avx2")) return ByAvx2<to>;
#endif
  return Plain<to>;
}

}  // namespace

StochasticRounding::StochasticRounding(uint32_t first_key, uint32_t second_key, uint64_t site, RoundTo to)
    : first_(Mixed(first_key + static_cast<uint32_t>(site >> 32))),
      second_(Mixed(second_key ^ static_cast<uint32_t>(site))),
      to_(to) {}

void StochasticRounding::Compute(const float* from, float* to, int64_t first, int64_t last) const {
  static const Kernel kernels[] = {Best<RoundTo::kHalves>(), Best<RoundTo::kHalvesOrNan>(),
                                   Best<RoundTo::kHalvesAndBeyond>(), Best<RoundTo::kIntegers>()};
  kernels[static_cast<int>(to_)](first_, second_, from, to, first, last);
}

}  // namespace tensorflow_ipu::core
