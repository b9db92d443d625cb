// Tests the blocks of a sum and their order, for all instructions and independently of the thread's float modes.
#include "tensorflow_ipu/kernels/numerics/partials.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tensorflow_ipu/kernels/numerics/half.h"

namespace {

using namespace tensorflow_ipu::core;

int64_t Size(const BlockedProducts::Space& space) { return space[0] * space[1] * space[2]; }

struct Operands {
  std::vector<uint16_t> left, right;
};

std::vector<uint16_t> Numbers(int64_t count, std::mt19937& random, bool wide) {
  std::vector<uint16_t> numbers(static_cast<std::size_t>(count));
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> bits(0, 0xffff);
  for (uint16_t& number : numbers) number = wide ? static_cast<uint16_t>(bits(random)) : F16::Store(normal(random));
  return numbers;
}

Operands OperandsOf(const BlockedProducts& product, std::mt19937& random, bool wide = false) {
  const int64_t left = product.group_left * (product.groups - 1) +
                       product.left_stride * (product.images * Size(product.in) - 1) + product.channels;
  const int64_t right = product.group_right * (product.groups - 1) +
                        product.right_stride * (Size(product.filter) * product.channels - 1) + product.features;
  return {Numbers(left, random, wide), Numbers(right, random, wide)};
}

// Returns the products of one sum in their order.
std::vector<float> Products(const BlockedProducts& p, const Operands& operands, int64_t group, int64_t image,
                            const BlockedProducts::Space& out, int64_t feature) {
  const auto product = [&](int64_t tap, int64_t channel) {
    const BlockedProducts::Space place = {tap / (p.filter[1] * p.filter[2]), tap / p.filter[2] % p.filter[1],
                                          tap % p.filter[2]};
    int64_t at = image;
    float left = 0;
    bool inside = true;
    for (int i = 0; i < 3; ++i) {
      const int64_t spread = out[i] * p.strides[i] + place[i] * p.filter_gaps[i] - p.before[i];
      inside = inside && spread >= 0 && spread % p.input_gaps[i] == 0 && spread / p.input_gaps[i] < p.in[i];
      at = at * p.in[i] + (inside ? spread / p.input_gaps[i] : 0);
    }
    if (inside) left = F16::Load(operands.left[group * p.group_left + at * p.left_stride + channel]);
    const int64_t row = tap * p.channels + channel;
    return left * F16::Load(operands.right[group * p.group_right + row * p.right_stride + feature]);
  };
  std::vector<float> products;
  const int64_t taps = Size(p.filter);
  const int64_t together = p.channels % 16 == 0 ? 16 : p.channels;
  for (int64_t first = 0; first < p.channels; first += together) {
    for (int64_t tap = 0; tap < taps; ++tap) {
      for (int64_t i = 0; i < together; ++i) products.push_back(product(tap, first + i));
    }
  }
  return products;
}

float Bounded(float value, Overflow overflow) {
  if (!std::isinf(value) || overflow == Overflow::kInfinite) return value;
  return overflow == Overflow::kNan ? NAN : std::copysign(65504.0f, value);
}

float Sum(const std::vector<float>& products, Partials partials, Overflow overflow) {
  float sum = 0;
  for (std::size_t first = 0; first < products.size(); first += 16) {
    volatile float block = 0;  // `volatile` prevents another order and a higher precision.
    for (std::size_t i = first; i < std::min(first + 16, products.size()); ++i) block = block + products[i];
    sum = sum + block;
    if (partials == Partials::kHalf) sum = Bounded(F16::Load(F16::Store(sum)), overflow);
  }
  return sum;
}

bool Same(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0 || (std::isnan(a) && std::isnan(b)); }

// Returns the number of elements of the result that differ from the definition.
int Differences(BlockedProducts p, const Operands& operands, Instructions instructions) {
  UseInstructions(instructions);
  const int64_t rows = p.images * Size(p.out);
  const int64_t size = p.group_out * (p.groups - 1) + p.out_stride * (rows - 1) + p.features;
  std::vector<float> floats(size, -1.0f);
  std::vector<uint16_t> halves(size, 0xffff);
  const bool half = p.result == Element::kHalf;
  void* const result = half ? static_cast<void*>(halves.data()) : floats.data();
  for (int64_t part = p.Parts() - 1; part >= 0; --part) {
    p.Compute(operands.left.data(), operands.right.data(), result, part, part + 1);
  }
  UseInstructions(BestInstructions());
  int differences = 0;
  for (int64_t group = 0; group < p.groups; ++group) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t place = row % Size(p.out);
      const BlockedProducts::Space out = {place / (p.out[1] * p.out[2]), place / p.out[2] % p.out[1], place % p.out[2]};
      for (int64_t feature = 0; feature < p.features; ++feature) {
        const float sum = Sum(Products(p, operands, group, row / Size(p.out), out, feature), p.partials, p.overflow);
        const int64_t at = group * p.group_out + row * p.out_stride + feature;
        const float actual = half ? F16::Load(halves[at]) : floats[at];
        differences += !Same(actual, half ? F16::Load(F16::Store(sum)) : sum);
      }
    }
  }
  return differences;
}

BlockedProducts Matrices(int64_t batch, int64_t rows, int64_t depth, int64_t columns) {
  BlockedProducts p{};
  p.groups = batch, p.images = rows, p.channels = depth, p.features = columns;
  p.left_stride = depth, p.right_stride = p.out_stride = columns;
  p.group_left = rows * depth, p.group_right = depth * columns, p.group_out = rows * columns;
  return p;
}

BlockedProducts Convolution(int64_t groups, int64_t channels, int64_t features) {
  BlockedProducts p{};
  p.groups = groups, p.images = 2, p.channels = channels, p.features = features;
  p.left_stride = groups * channels, p.right_stride = p.out_stride = groups * features;
  p.group_left = channels, p.group_right = p.group_out = features;
  return p;
}

void CheckAll(BlockedProducts p, bool wide = false) {
  std::mt19937 random(7);
  const Operands operands = OperandsOf(p, random, wide);
  for (const Partials partials : {Partials::kHalf, Partials::kFloat}) {
    for (const Element result : {Element::kHalf, Element::kFloat}) {
      for (int i = 0; i <= static_cast<int>(BestInstructions()); ++i) {
        p.partials = partials, p.result = result;
        EXPECT_EQ(Differences(p, operands, static_cast<Instructions>(i)), 0);
      }
    }
  }
}

TEST(Partials, products_of_matrices_sum_in_blocks_of_16) {
  CheckAll(Matrices(1, 5, 64, 17));
  CheckAll(Matrices(3, 7, 37, 33));
  CheckAll(Matrices(1, 50, 300, 130));
  CheckAll(Matrices(2, 61, 19, 3));  // There are so few columns that vectors contain rows.
  CheckAll(Matrices(1, 1, 1, 1));
}

TEST(Partials, every_half_value_is_summed_by_ieee_754) {
  CheckAll(Matrices(1, 40, 24, 40), /*wide=*/true);  // The values include subnormals, infinities and NaNs.
}

TEST(Partials, half_partials_overflow_to_the_configured_value) {
  BlockedProducts p = Matrices(1, 7, 64, 33);
  p.partials = Partials::kHalf;
  std::mt19937 random(5);
  Operands operands = OperandsOf(p, random);
  for (uint16_t& half : operands.left) half = F16::Store(F16::Load(half) * 4096);
  for (const Overflow overflow : {Overflow::kInfinite, Overflow::kLargest, Overflow::kNan}) {
    for (int i = 0; i <= static_cast<int>(BestInstructions()); ++i) {
      p.overflow = overflow;
      EXPECT_EQ(Differences(p, operands, static_cast<Instructions>(i)), 0);
    }
  }
}

TEST(Partials, convolutions_sum_over_places_and_channels_in_order) {
  BlockedProducts p = Convolution(1, 32, 20);
  p.in = {1, 7, 6}, p.filter = {1, 3, 3}, p.out = {1, 4, 6}, p.strides = {1, 2, 1}, p.before = {0, 1, 1};
  CheckAll(p);
  p = Convolution(1, 3, 9);  // Blocks span the channels of several places.
  p.in = {4, 5, 6}, p.filter = {2, 3, 2}, p.out = {3, 3, 3}, p.filter_gaps = {1, 1, 3};
  CheckAll(p);
  p = Convolution(1, 16, 5);  // As in a gradient, with gaps in the input.
  p.in = {1, 4, 5}, p.filter = {1, 2, 3}, p.out = {1, 8, 9}, p.input_gaps = {1, 2, 2}, p.before = {0, 1, 1};
  CheckAll(p);
}

TEST(Partials, groups_of_a_convolution_have_separate_sums) {
  BlockedProducts p = Convolution(6, 1, 1);  // A depthwise convolution.
  p.in = p.out = {1, 5, 7}, p.filter = {1, 3, 3}, p.before = {0, 1, 1};
  CheckAll(p);
  p = Convolution(2, 16, 12);
  p.in = p.out = {1, 5, 3}, p.filter = {1, 3, 1}, p.before = {0, 1, 0};
  CheckAll(p);
}

TEST(Partials, half_partials_lose_what_float_partials_keep) {
  BlockedProducts p = Matrices(1, 1, 16 * 4096, 1);
  Operands operands{std::vector<uint16_t>(p.channels, F16::Store(1.0f)),
                    std::vector<uint16_t>(p.channels, F16::Store(1.0f / 16))};
  p.result = Element::kFloat;
  float sum = 0;
  p.partials = Partials::kFloat;
  p.Compute(operands.left.data(), operands.right.data(), &sum, 0, p.Parts());
  EXPECT_EQ(sum, 4096.0f);
  p.partials = Partials::kHalf;
  p.Compute(operands.left.data(), operands.right.data(), &sum, 0, p.Parts());
  EXPECT_EQ(sum, 2048.0f);  // At 2048, 1 is half of the last digit, and is rounded to even.
}

std::vector<float> AtRandom(BlockedProducts p, const Operands& operands, const uint32_t (&key)[2], int instructions) {
  UseInstructions(static_cast<Instructions>(instructions));
  p.partials = Partials::kHalf, p.result = Element::kFloat, p.key = key;
  std::vector<float> result(static_cast<std::size_t>(p.groups * p.images * p.features));
  for (int64_t part = 0; part < p.Parts(); ++part) {
    p.Compute(operands.left.data(), operands.right.data(), result.data(), part, part + 1);
  }
  UseInstructions(BestInstructions());
  return result;
}

TEST(Partials, half_partials_with_a_key_round_stochastically_and_equally_with_all_instructions) {
  const uint32_t key[] = {3, 4}, other[] = {3, 5};
  for (const BlockedProducts& p : {Matrices(2, 50, 300, 33), Matrices(1, 61, 70, 3)}) {
    std::mt19937 random(11);
    const Operands operands = OperandsOf(p, random);
    const std::vector<float> plain = AtRandom(p, operands, key, 0);
    for (const float sum : plain) EXPECT_EQ(F16::Load(F16::Store(sum)), sum);
    for (int i = 1; i <= static_cast<int>(BestInstructions()); ++i) EXPECT_EQ(AtRandom(p, operands, key, i), plain);
    EXPECT_TRUE(AtRandom(p, operands, other, 0) != plain);
  }
}

TEST(Partials, half_partials_with_a_key_keep_on_average_what_float_partials_keep) {
  // From 1024 on, neighbours have the distance 1, and each of 64 blocks adds a quarter.
  const BlockedProducts p = Matrices(1, 40, 16 * 65, 20);
  Operands operands{std::vector<uint16_t>(40 * 16 * 65, F16::Store(1.0f)),
                    std::vector<uint16_t>(16 * 65 * 20, F16::Store(1.0f / 64))};
  for (int64_t i = 0; i < 16 * 20; ++i) operands.right[i] = F16::Store(64.0f);
  const uint32_t key[] = {1, 2};
  const std::vector<float> sums = AtRandom(p, operands, key, 0);
  double mean = 0, unequal = 0;
  for (const float sum : sums) mean += (sum - 1024) / 800;
  for (std::size_t i = 1; i < sums.size(); ++i) unequal += sums[i] != sums[i - 1];
  EXPECT_TRUE(std::fabs(mean - 16) < 4 * std::sqrt(64 * 3.0 / 16 / 800));
  EXPECT_TRUE(unequal > 400);  // Elements are rounded independently.
}

TEST(Partials, half_partials_with_a_key_overflow_to_the_configured_value) {
  BlockedProducts p = Matrices(1, 1, 32, 1);
  const Operands operands{std::vector<uint16_t>(32, F16::Store(64.0f)), std::vector<uint16_t>(32, F16::Store(64.0f))};
  const uint32_t key[] = {1, 2};
  p.overflow = Overflow::kLargest;
  EXPECT_EQ(AtRandom(p, operands, key, 0)[0], 65504.0f);
  p.overflow = Overflow::kInfinite;
  EXPECT_TRUE(std::isinf(AtRandom(p, operands, key, 0)[0]));
  p.overflow = Overflow::kNan;
  EXPECT_TRUE(std::isnan(AtRandom(p, operands, key, 0)[0]));
}

TEST(Partials, floats_with_half_values_have_the_same_results) {
  BlockedProducts p = Matrices(1, 9, 70, 21);
  std::mt19937 random(3);
  const Operands operands = OperandsOf(p, random);
  std::vector<float> left, right, of_halves(9 * 21), of_floats(9 * 21);
  for (const uint16_t half : operands.left) left.push_back(F16::Load(half));
  for (const uint16_t half : operands.right) right.push_back(F16::Load(half));
  p.result = Element::kFloat;
  p.Compute(operands.left.data(), operands.right.data(), of_halves.data(), 0, p.Parts());
  p.operands = Element::kFloat;
  p.Compute(left.data(), right.data(), of_floats.data(), 0, p.Parts());
  EXPECT_EQ(of_halves, of_floats);
}

}  // namespace
