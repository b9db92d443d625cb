// Tests the arithmetic of every type and its order, independently of the thread's float modes.
#include "tensorflow_ipu/kernels/numerics/reduction.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace {

using namespace tensorflow_ipu::core;

template <typename T>
std::vector<T> Reduced(DataType type, Reduction reduction, const std::vector<std::vector<T>>& inputs) {
  std::vector<const std::byte*> addresses;
  for (const auto& input : inputs) addresses.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> out(inputs.front().size());
  Reduce(type, reduction, addresses, static_cast<int64_t>(out.size()), reinterpret_cast<std::byte*>(out.data()));
  return out;
}

template <typename T>
std::vector<T> Each(DataType type, Reduction reduction, std::vector<T> values) {
  std::vector<std::vector<T>> inputs;
  for (const T value : values) inputs.push_back({value});
  return Reduced(type, reduction, inputs);
}

float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

double ValueOfHalf(uint16_t half) {
  const int exponent = (half >> 10) & 0x1f;
  const int mantissa = half & 0x3ff;
  const double sign = half & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

// Finds the nearest half by search; ties to even.
uint16_t NearestHalf(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude >= 65520) return sign | 0x7c00;
  int low = 0;
  int high = 0x7bff;
  while (low < high) {  // Finds the largest half that is not above the value.
    const int middle = (low + high + 1) / 2;
    if (ValueOfHalf(static_cast<uint16_t>(middle)) <= magnitude) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const double below = magnitude - ValueOfHalf(static_cast<uint16_t>(low));
  const double above = (low == 0x7bff ? 65536 : ValueOfHalf(static_cast<uint16_t>(low + 1))) - magnitude;
  return static_cast<uint16_t>(sign | (above < below || (above == below && low % 2 == 1) ? low + 1 : low));
}

TEST(Reduction, floats_are_reduced_by_every_operation) {
  const std::vector<float> values = {3, -2, 7, 4};
  EXPECT_EQ(Each(DataType::kF32, Reduction::kSum, values)[0], 12.0f);
  EXPECT_EQ(Each(DataType::kF32, Reduction::kMean, values)[0], 3.0f);
  EXPECT_EQ(Each(DataType::kF32, Reduction::kProduct, values)[0], -168.0f);
  EXPECT_EQ(Each(DataType::kF32, Reduction::kMin, values)[0], -2.0f);
  EXPECT_EQ(Each(DataType::kF32, Reduction::kMax, values)[0], 7.0f);
}

TEST(Reduction, booleans_are_reduced_by_logical_operations) {
  const std::vector<std::vector<uint8_t>> inputs = {{0, 0, 1, 1}, {0, 1, 0, 1}};
  EXPECT_TRUE((Reduced(DataType::kBool, Reduction::kAnd, inputs) == std::vector<uint8_t>{0, 0, 0, 1}));
  EXPECT_TRUE((Reduced(DataType::kBool, Reduction::kOr, inputs) == std::vector<uint8_t>{0, 1, 1, 1}));
  EXPECT_FALSE(Supports(DataType::kBool, Reduction::kSum));
  EXPECT_FALSE(Supports(DataType::kF32, Reduction::kAnd));
  EXPECT_TRUE(Supports(DataType::kBool, Reduction::kLocal));
}

template <typename T>
void CheckIntegers(DataType type) {
  const T largest = std::numeric_limits<T>::max();
  EXPECT_EQ(Each<T>(type, Reduction::kSum, {largest, 1})[0], std::numeric_limits<T>::min());
  EXPECT_EQ(Each<T>(type, Reduction::kSum, {5, 6, 7})[0], T{18});
  EXPECT_EQ(Each<T>(type, Reduction::kMean, {5, 6, 9})[0], T{6});
  EXPECT_EQ(Each<T>(type, Reduction::kProduct, {5, 6, 2})[0], T{60});
  EXPECT_EQ(Each<T>(type, Reduction::kMin, {5, largest, 9})[0], T{5});
  EXPECT_EQ(Each<T>(type, Reduction::kMax, {5, largest, 9})[0], largest);
  if (sizeof(T) < 8) EXPECT_EQ(Each<T>(type, Reduction::kMean, {largest, largest, largest})[0], largest);
  if (std::numeric_limits<T>::is_signed) {
    EXPECT_EQ(Each<T>(type, Reduction::kMean, {static_cast<T>(-5), 0})[0], static_cast<T>(-2));
    EXPECT_EQ(Each<T>(type, Reduction::kMin, {5, static_cast<T>(-1)})[0], static_cast<T>(-1));
  }
}

TEST(Reduction, integers_wrap_around_and_their_mean_is_rounded_toward_zero) {
  CheckIntegers<int8_t>(DataType::kS8);
  CheckIntegers<int16_t>(DataType::kS16);
  CheckIntegers<int32_t>(DataType::kS32);
  CheckIntegers<int64_t>(DataType::kS64);
  CheckIntegers<uint8_t>(DataType::kU8);
  CheckIntegers<uint16_t>(DataType::kU16);
  CheckIntegers<uint32_t>(DataType::kU32);
  CheckIntegers<uint64_t>(DataType::kU64);
}

TEST(Reduction, sums_are_computed_from_left_to_right) {
  EXPECT_EQ(Each<float>(DataType::kF32, Reduction::kSum, {1e8f, 1, -1e8f, 1})[0], 1.0f);
  EXPECT_EQ(Each<float>(DataType::kF32, Reduction::kSum, {1e8f, -1e8f, 1, 1})[0], 2.0f);
}

TEST(Reduction, lengths_around_the_block_size_are_summed_completely) {
  for (const std::size_t count : {1, 15, 16, 17, 1023, 1024, 1025, 5000}) {
    std::vector<std::vector<int32_t>> inputs(3, std::vector<int32_t>(count));
    for (std::size_t i = 0; i < count; ++i) {
      for (int32_t r = 0; r < 3; ++r) inputs[r][i] = static_cast<int32_t>(i) * (r + 1);
    }
    const std::vector<int32_t> sum = Reduced(DataType::kS32, Reduction::kSum, inputs);
    bool right = true;
    for (std::size_t i = 0; i < count; ++i) right = right && sum[i] == static_cast<int32_t>(6 * i);
    EXPECT_TRUE(right);
  }
}

TEST(Reduction, the_result_may_overwrite_any_input) {
  for (int place = 0; place < 3; ++place) {
    std::vector<std::vector<double>> inputs(3, std::vector<double>(3000, 1.5));
    std::vector<const std::byte*> addresses;
    for (const auto& input : inputs) addresses.push_back(reinterpret_cast<const std::byte*>(input.data()));
    Reduce(DataType::kF64, Reduction::kSum, addresses, 3000, reinterpret_cast<std::byte*>(inputs[place].data()));
    EXPECT_EQ(inputs[place], std::vector<double>(3000, 4.5));
  }
}

TEST(Reduction, unaligned_inputs_are_supported) {
  constexpr int64_t kCount = 2500;
  std::vector<std::byte> bytes(2 * kCount * sizeof(int32_t) + 1);
  for (int64_t i = 0; i < 2 * kCount; ++i) {
    const int32_t value = static_cast<int32_t>(i);
    std::memcpy(bytes.data() + 1 + i * sizeof(int32_t), &value, sizeof(value));
  }
  std::vector<int32_t> sum(kCount);
  Reduce(DataType::kS32, Reduction::kSum, {bytes.data() + 1, bytes.data() + 1 + kCount * sizeof(int32_t)}, kCount,
         reinterpret_cast<std::byte*>(sum.data()));
  bool right = true;
  for (int64_t i = 0; i < kCount; ++i) right = right && sum[i] == 2 * i + kCount;
  EXPECT_TRUE(right);
}

TEST(Reduction, a_nan_in_any_place_makes_the_result_nan) {
  for (const Reduction reduction : {Reduction::kMin, Reduction::kMax, Reduction::kSum}) {
    for (int place = 0; place < 3; ++place) {
      std::vector<float> values = {1, 2, 3};
      values[place] = NAN;
      EXPECT_TRUE(std::isnan(Each(DataType::kF32, reduction, values)[0]));
    }
  }
}

TEST(Reduction, every_half_is_unchanged_by_a_maximum_with_itself) {
  std::vector<uint16_t> halves(65536);
  for (int i = 0; i < 65536; ++i) halves[i] = static_cast<uint16_t>(i);
  const auto same = Reduced<uint16_t>(DataType::kF16, Reduction::kMax, {halves, halves});
  int wrong = 0;
  for (int i = 0; i < 65536; ++i) {
    const bool nan = (i & 0x7c00) == 0x7c00 && (i & 0x3ff) != 0;
    wrong += nan ? !std::isnan(ValueOfHalf(same[i])) : same[i] != i;
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Reduction, sums_of_halves_are_rounded_once_to_nearest_even) {
  std::vector<uint16_t> a;
  std::vector<uint16_t> b;
  for (uint32_t i = 0; i < 200000; ++i) {  // All exponents and signs, in a fixed sequence.
    a.push_back(static_cast<uint16_t>(i * 2654435761u >> 16));
    b.push_back(static_cast<uint16_t>(i * 40503u + 77));
  }
  const auto sums = Reduced<uint16_t>(DataType::kF16, Reduction::kSum, {a, b});
  int wrong = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double value =
        static_cast<double>(static_cast<float>(ValueOfHalf(a[i])) + static_cast<float>(ValueOfHalf(b[i])));
    const bool right = std::isnan(value) ? std::isnan(ValueOfHalf(sums[i]))
                                         : sums[i] == NearestHalf(value) || (value == 0 && ValueOfHalf(sums[i]) == 0);
    wrong += !right;
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Reduction, halves_accumulate_in_float32) {
  const uint16_t one = 0x3c00;
  const uint16_t two_thousand = 0x6800;  // 2048, to which a half cannot add one.
  EXPECT_EQ(ValueOfHalf(Each<uint16_t>(DataType::kF16, Reduction::kSum, {two_thousand, one, one})[0]), 2050.0);
  const uint16_t largest = 0x7bff;  // 65504
  EXPECT_EQ(Each<uint16_t>(DataType::kF16, Reduction::kMean, {largest, largest, largest, largest})[0], largest);
  EXPECT_EQ(Each<uint16_t>(DataType::kF16, Reduction::kSum, {largest, largest})[0], uint16_t{0x7c00});
}

TEST(Reduction, bfloat16_accumulates_in_float32_and_is_rounded_to_nearest_even) {
  const uint16_t one = 0x3f80;
  const uint16_t big = 0x4380;  // 256, to which a bfloat16 cannot add one.
  EXPECT_EQ(Each<uint16_t>(DataType::kBF16, Reduction::kSum, {big, one, one})[0], uint16_t{0x4381});
  EXPECT_EQ(Each<uint16_t>(DataType::kBF16, Reduction::kSum, {big, one})[0], uint16_t{0x4380});
  EXPECT_EQ(Each<uint16_t>(DataType::kBF16, Reduction::kSum, {big, one, one, one})[0], uint16_t{0x4382});
  const uint16_t nan = Each<uint16_t>(DataType::kBF16, Reduction::kSum, {0x7fc1, one})[0];
  EXPECT_TRUE(std::isnan(FloatOf(static_cast<uint32_t>(nan) << 16)));
}

#if defined(__x86_64__)
TEST(Reduction, a_thread_that_flushes_subnormals_computes_the_same_result) {
  const float tiny = FloatOf(1);
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x8040);
  const float sum = Each<float>(DataType::kF32, Reduction::kSum, {tiny, tiny})[0];
  const unsigned after = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before);
  uint32_t bits;
  std::memcpy(&bits, &sum, sizeof(bits));
  EXPECT_EQ(bits, 2u);
  EXPECT_EQ(after & 0x8040, 0x8040u);
}
#endif

}  // namespace
