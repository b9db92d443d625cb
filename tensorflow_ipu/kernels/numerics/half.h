// Converts float16 to float and back, rounded to nearest. The code has no branches, so that loops vectorize.
#pragma once

#include <cstdint>
#include <cstring>

namespace tensorflow_ipu::core {

// Returns a signed integer, since SSE2 cannot compare unsigned ones.
inline int32_t Bits(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FromBits(int32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Selects by masks, because GCC would turn a conditional expression into a branch here.
inline int32_t Select(bool condition, int32_t then, int32_t otherwise) {
  const int32_t mask = -static_cast<int32_t>(condition);
  return (then & mask) | (otherwise & ~mask);
}

struct F16 {
  using Stored = uint16_t;
  using Held = float;
  // The biases of the exponents differ by 112. No intermediate value is a subnormal float, which would be slow.
  static Held Load(Stored stored) {
    const int32_t sign = static_cast<int32_t>(static_cast<uint32_t>(stored & 0x8000) << 16);
    const int32_t magnitude = (stored & 0x7fff) << 13;
    const int32_t subnormal = Bits(static_cast<float>(stored & 0x3ff) * 0x1p-24f);
    int32_t bits = Select(magnitude < 0x00800000, subnormal, magnitude + 0x38000000);
    bits = Select(magnitude >= 0x0f800000, magnitude | 0x7f800000, bits);
    return FromBits(sign | bits);
  }
  static Stored Store(Held held) {
    const int32_t sign = (Bits(held) >> 16) & 0x8000;
    const int32_t magnitude = Bits(held) & 0x7fffffff;
    // Subnormal: adding 0.5 rounds to the last bit of the half.
    const int32_t subnormal = Bits(FromBits(magnitude) + 0.5f) - Bits(0.5f);
    // Not selected below if it is negative.
    const int32_t normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    int32_t half = Select(magnitude < 0x38800000, subnormal, normal);
    half = Select(magnitude >= 0x477ff000, 0x7c00, half);  // Values from 65520 on round to infinity.
    half = Select(magnitude > 0x7f800000, 0x7e00, half);
    return static_cast<Stored>(sign | half);
  }
};

}  // namespace tensorflow_ipu::core
