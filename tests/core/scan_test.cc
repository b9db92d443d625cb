// Tests that an element is found in every place and with either sign, and that no element below the limit is.
#include "tensorflow_ipu/kernels/numerics/scan.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace {

using namespace tensorflow_ipu::core;

// Tries each place of tensors that end at different places of a block.
template <typename Word, typename Has>
void FindOneElement(Has has, Word limit, Word sign) {
  const auto below = static_cast<Word>(limit - 1);
  for (const std::size_t count : {1, 3, 255, 256, 257, 600}) {
    std::vector<Word> words(count, below);
    const auto size = static_cast<int64_t>(count);
    EXPECT_FALSE(has(limit, words.data(), size));
    for (Word& word : words) {
      word = limit | sign;
      EXPECT_TRUE(has(limit, words.data(), size));
      word = below | sign;
      EXPECT_FALSE(has(limit, words.data(), size));
      word = below;
    }
  }
  EXPECT_FALSE(has(limit, nullptr, 0));
}

TEST(Scan, a_half_is_found_in_every_place) {
  FindOneElement<uint16_t>(HasHalvesFrom, 0x7c00, 0x8000);
  FindOneElement<uint16_t>(HasHalvesFrom, 0x7c01, 0x8000);
}

TEST(Scan, a_float_is_found_in_every_place) {
  FindOneElement<uint32_t>(HasFloatsFrom, 0x7f800000, 0x80000000);
  FindOneElement<uint32_t>(HasFloatsFrom, 0x477ff000, 0x80000000);
}

}  // namespace
