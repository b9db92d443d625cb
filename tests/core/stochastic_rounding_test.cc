// Numbers become a neighbour of float16 whose mean they are, and the same one however an array is divided.
#include "tensorflow_ipu/kernels/core/stochastic_rounding.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "tests/core/check.h"

namespace {

using namespace tensorflow_ipu::core;

constexpr float kLargest = 65504;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> Rounded(RoundTo to, const std::vector<float>& values, uint64_t site = 1) {
  std::vector<float> rounded(values.size());
  StochasticRounding(2, 3, site, to).Compute(values.data(), rounded.data(), 0, static_cast<int64_t>(values.size()));
  return rounded;
}

float One(RoundTo to, float value) { return Rounded(to, {value})[0]; }

TEST(means_are_the_numbers) {
  constexpr int kCount = 100000;
  for (const float value : {1.0f + 0x1p-12f, -3.14159f, 1000.123f, 0x1p-14f - 0x1p-27f, -0x1.cp-24f, 0x1p-26f}) {
    const float gap = std::ldexp(1.0f, std::max(std::ilogb(value), -14) - 10);
    double sum = 0;
    for (const float one : Rounded(RoundTo::kHalves, std::vector<float>(kCount, value))) {
      CHECK(std::fabs(one - value) < gap && std::remainder(one, gap) == 0);
      sum += one;
    }
    CHECK(std::fabs(sum / kCount - value) < 4 * 0.5 * gap / std::sqrt(kCount));
  }
}

TEST(what_float16_holds_stays) {
  for (const float value : {0.0f, -0.0f, 1.0f, -2048.0f, 0x1p-24f, -0x1p-14f, kLargest}) {
    const float rounded = One(RoundTo::kHalves, value);
    CHECK(std::memcmp(&rounded, &value, sizeof(value)) == 0);
  }
}

TEST(overflow_is_as_asked_for) {
  const float most = std::numeric_limits<float>::max();
  for (const float value : {1e6f, most, kInfinity}) {
    CHECK_EQ(One(RoundTo::kHalves, -value), -kLargest);
    CHECK(std::isnan(One(RoundTo::kHalvesOrNan, value)));
    CHECK(One(RoundTo::kHalvesAndBeyond, value) > kLargest);
    CHECK(std::isnan(One(RoundTo::kHalves, std::nanf(""))));
  }
}

TEST(parts_of_an_array_round_as_the_whole_and_sites_differently) {
  std::vector<float> values(1000, 1 + 0x1p-11f);
  const std::vector<float> whole = Rounded(RoundTo::kHalves, values);
  CHECK(whole != Rounded(RoundTo::kHalves, values, 4));
  const StochasticRounding rounding(2, 3, 1, RoundTo::kHalves);
  for (const auto& [first, last] : {std::pair<int64_t, int64_t>{333, 1000}, {0, 5}, {5, 333}, {1000, 1000}}) {
    rounding.Compute(values.data(), values.data(), first, last);
  }
  CHECK(values == whole);
}

}  // namespace
