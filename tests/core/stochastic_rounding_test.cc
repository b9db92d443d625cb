// Tests that values are rounded to neighbours whose mean they are, and equally for any division of an array.
#include "tensorflow_ipu/kernels/numerics/stochastic_rounding.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tensorflow_ipu/kernels/numerics/half.h"

namespace {

using namespace tensorflow_ipu::core;

constexpr float kLargest = 65504;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Numbers NumbersOf(std::vector<float>& values) { return {values.data(), false, values.size() == 1}; }
Numbers NumbersOf(std::vector<uint16_t>& values) { return {values.data(), true, values.size() == 1}; }

std::vector<float> Rounded(RoundTo to, std::vector<float> values, uint64_t site = 1) {
  std::vector<float> rounded(values.size());
  const auto count = static_cast<int64_t>(values.size());
  StochasticRounding{{2, 3}, site, to, Operation::kNone, {values.data()}, {}, {rounded.data()}}.Compute(0, count);
  return rounded;
}

float One(RoundTo to, float value) { return Rounded(to, {value})[0]; }

TEST(StochasticRounding, the_mean_of_rounded_values_is_the_value) {
  constexpr int kCount = 100000;
  for (const float value : {1.0f + 0x1p-12f, -3.14159f, 1000.123f, 0x1p-14f - 0x1p-27f, -0x1.cp-24f, 0x1p-26f}) {
    const float gap = std::ldexp(1.0f, std::max(std::ilogb(value), -14) - 10);
    double sum = 0;
    for (const float rounded : Rounded(RoundTo::kHalves, std::vector<float>(kCount, value))) {
      EXPECT_TRUE(std::fabs(rounded - value) < gap && std::remainder(rounded, gap) == 0);
      sum += rounded;
    }
    EXPECT_TRUE(std::fabs(sum / kCount - value) < 4 * 0.5 * gap / std::sqrt(kCount));
  }
}

// Rounds one value in double precision, without the kernel's optimizations.
float ByFormula(RoundTo to, float value, std::size_t index, uint64_t site) {
  const auto mixed = [](uint32_t x) {
    x = (x ^ (x >> 16)) * kFirstFactor;
    x = (x ^ (x >> 15)) * kSecondFactor;
    return x ^ (x >> 16);
  };
  if (std::isnan(value)) return value;
  uint32_t x = static_cast<uint32_t>(index) * kGolden + mixed(2 + static_cast<uint32_t>(site >> 32));
  x = (x ^ (x >> 16)) * kFirstFactor + mixed(3 ^ static_cast<uint32_t>(site));
  x = ((x ^ (x >> 15)) * kSecondFactor) >> 19;
  const double gap = std::ldexp(1.0, std::max(value == 0 ? -14 : std::ilogb(value), -14) - 10);
  const auto sum = static_cast<float>(std::fabs(value) / gap + x * 0x1p-13);
  const double rounded = std::isinf(value) ? std::fabs(value) : std::floor(sum) * gap;
  if (to != RoundTo::kHalvesAndBeyond && rounded > kLargest) {
    return to == RoundTo::kHalvesOrNan ? std::nanf("") : std::copysign(kLargest, value);
  }
  return std::copysign(static_cast<float>(rounded), value);
}

TEST(StochasticRounding, values_of_all_sizes_are_rounded_by_the_formula_as_float32_and_as_float16) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0xfff00000u; bits += 0x0003a7f1) {
    float& value = values.emplace_back();
    std::memcpy(&value, &bits, sizeof(value));
  }
  for (const float value : {0x1.ffcp15f, 0x1.fffffep15f, 0x1.fffffep-15f, 0x1p-149f, kInfinity}) {
    values.insert(values.end(), 20, value);
    values.insert(values.end(), 20, -value);
  }
  std::vector<uint16_t> halves(values.size());
  for (const RoundTo to : {RoundTo::kHalves, RoundTo::kHalvesOrNan, RoundTo::kHalvesAndBeyond}) {
    for (const uint64_t site : {uint64_t{1}, uint64_t{0xfedcba9876543210}}) {
      const std::vector<float> rounded = Rounded(to, values, site);
      StochasticRounding{{2, 3}, site, to, Operation::kNone, NumbersOf(values), {}, NumbersOf(halves)}.Compute(
          0, static_cast<int64_t>(values.size()));
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float expected = ByFormula(to, values[i], i, site), half = F16::Load(halves[i]);
        EXPECT_TRUE(std::isnan(expected) ? std::isnan(rounded[i])
                                         : std::memcmp(&rounded[i], &expected, sizeof(expected)) == 0);
        if (to == RoundTo::kHalvesAndBeyond && std::fabs(rounded[i]) > kLargest) continue;
        EXPECT_TRUE(std::isnan(expected) ? std::isnan(half) : std::memcmp(&half, &expected, sizeof(expected)) == 0);
      }
    }
  }
}

TEST(StochasticRounding, values_of_float16_are_unchanged) {
  for (const float value : {0.0f, -0.0f, 1.0f, -2048.0f, 0x1p-24f, -0x1p-14f, kLargest}) {
    const float rounded = One(RoundTo::kHalves, value);
    EXPECT_EQ(std::memcmp(&rounded, &value, sizeof(value)), 0);
  }
}

TEST(StochasticRounding, overflow_results_in_the_configured_value) {
  const float largest = std::numeric_limits<float>::max();
  for (const float value : {1e6f, largest, kInfinity}) {
    EXPECT_EQ(One(RoundTo::kHalves, -value), -kLargest);
    EXPECT_TRUE(std::isnan(One(RoundTo::kHalvesOrNan, value)));
    EXPECT_TRUE(One(RoundTo::kHalvesAndBeyond, value) > kLargest);
    EXPECT_TRUE(std::isnan(One(RoundTo::kHalves, std::nanf(""))));
  }
}

TEST(StochasticRounding, parts_of_an_array_are_rounded_like_the_whole_and_sites_differently) {
  std::vector<float> values(1000, 1 + 0x1p-11f);
  const std::vector<float> whole = Rounded(RoundTo::kHalves, values);
  EXPECT_TRUE(whole != Rounded(RoundTo::kHalves, values, 4));
  const Numbers numbers = NumbersOf(values);
  const StochasticRounding rounding = {{2, 3}, 1, RoundTo::kHalves, Operation::kNone, numbers, {}, numbers};
  for (const auto& [first, last] : {std::pair<int64_t, int64_t>{333, 1000}, {0, 5}, {5, 333}, {1000, 1000}}) {
    rounding.Compute(first, last);
  }
  EXPECT_EQ(values, whole);
}

TEST(StochasticRounding, operations_on_float16_and_on_scalars_are_rounded_like_their_float32_results) {
  constexpr std::size_t kCount = 150;
  std::vector<float> a(kCount), one = {1.5f}, exact(kCount);
  std::vector<uint16_t> halves(kCount), result(kCount);
  const auto check = [&](Operation operation, auto compute) {
    for (std::size_t i = 0; i < kCount; ++i) {
      a[i] = F16::Load(halves[i] = static_cast<uint16_t>(0x2e66 + 77 * i));
      exact[i] = compute(a[i]);
    }
    StochasticRounding rounding = {{2, 3},           1, RoundTo::kHalves, operation, NumbersOf(halves), NumbersOf(one),
                                   NumbersOf(result)};
    rounding.Compute(0, kCount);
    rounding.a = rounding.result = NumbersOf(a);
    rounding.Compute(0, kCount);
    EXPECT_EQ(a, Rounded(RoundTo::kHalves, exact));
    for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(F16::Load(result[i]), a[i]);
  };
  check(Operation::kNone, [](float x) { return x; });
  check(Operation::kAdd, [](float x) { return x + 1.5f; });
  check(Operation::kSubtract, [](float x) { return x - 1.5f; });
  check(Operation::kMultiply, [](float x) { return x * 1.5f; });
  check(Operation::kDivide, [](float x) { return x / 1.5f; });
  check(Operation::kSqrt, [](float x) { return std::sqrt(x); });
}

}  // namespace
