// Tests that each replica has a stream, which the same seed repeats.
#include "tensorflow_ipu/kernels/numerics/random_streams.h"

#include <cstdint>
#include <set>
#include <utility>

#include "gtest/gtest.h"

namespace {

using namespace tensorflow_ipu::core;

std::pair<int64_t, int64_t> Draw(RandomStreams& streams, int64_t replica) {
  const RandomSeed seed = streams.Draw(replica);
  return {seed.key, seed.count};
}

TEST(RandomStreams, no_two_draws_are_the_same) {
  RandomStreams streams;
  streams.Reset(0, false);
  std::set<std::pair<int64_t, int64_t>> drawn;
  for (int64_t replica = 0; replica < 64; ++replica) {
    for (int draw = 0; draw < 16; ++draw) drawn.insert(Draw(streams, replica));
  }
  EXPECT_EQ(drawn.size(), std::size_t{64 * 16});
}

TEST(RandomStreams, the_same_seed_repeats_the_draws) {
  RandomStreams streams;
  streams.Reset(3, false);
  const auto first = Draw(streams, 1);
  const auto second = Draw(streams, 1);
  Draw(streams, 0);
  streams.Reset(3, false);
  EXPECT_EQ(Draw(streams, 1), first);
  EXPECT_EQ(Draw(streams, 1), second);
  streams.Reset(4, false);
  EXPECT_TRUE(Draw(streams, 1) != first);
}

TEST(RandomStreams, identical_replicas_draw_the_same_values) {
  RandomStreams streams;
  streams.Reset(3, true);
  EXPECT_EQ(Draw(streams, 0), Draw(streams, 5));
  EXPECT_EQ(streams.StreamOf(5), 0);
  streams.Reset(3, false);
  EXPECT_EQ(streams.StreamOf(5), 5);
}

TEST(RandomStreams, without_a_seed_no_two_streams_are_equal) {
  RandomStreams streams;
  RandomStreams other;
  EXPECT_TRUE(Draw(streams, 0) != Draw(other, 0));
  const auto before = Draw(streams, 0);
  streams.Forget();
  EXPECT_TRUE(Draw(streams, 0).first != before.first);
}

}  // namespace
