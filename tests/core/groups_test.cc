// Tests the groups of replicas, and their division among workers.
#include "tensorflow_ipu/kernels/support/groups.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace {

using namespace tensorflow_ipu::core;

std::vector<std::vector<int64_t>> Members(const Grouping& grouping, int64_t replicas) {
  std::vector<std::vector<int64_t>> groups;
  for (int64_t replica = 0; replica < replicas; ++replica) {
    const Group group = Group::Of(grouping, replica, replicas);
    EXPECT_EQ(group.Replica(group.rank), replica);
    if (group.number >= static_cast<int64_t>(groups.size())) groups.resize(group.number + 1);
    groups[group.number].resize(group.size, -1);
    groups[group.number][group.rank] = replica;
  }
  return groups;
}

TEST(Groups, groups_have_neighbours_or_replicas_at_the_distance_of_the_number_of_groups) {
  EXPECT_TRUE((Members({2, false}, 8) == std::vector<std::vector<int64_t>>{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_TRUE((Members({2, true}, 8) == std::vector<std::vector<int64_t>>{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_TRUE((Members({4, true}, 8) == std::vector<std::vector<int64_t>>{{0, 2, 4, 6}, {1, 3, 5, 7}}));
}

TEST(Groups, size_0_is_one_group_of_all) {
  for (const bool orthogonal : {false, true}) {
    EXPECT_TRUE((Members({0, orthogonal}, 4) == std::vector<std::vector<int64_t>>{{0, 1, 2, 3}}));
  }
}

TEST(Groups, every_replica_is_in_one_group_of_every_size) {
  for (const int64_t replicas : {1, 2, 6, 16}) {
    for (int64_t size = 1; size <= replicas; ++size) {
      if (!Grouping{size, false}.Divides(replicas)) continue;
      for (const bool orthogonal : {false, true}) {
        const auto groups = Members({size, orthogonal}, replicas);
        EXPECT_EQ(static_cast<int64_t>(groups.size()), replicas / size);
        for (const auto& group : groups) {
          EXPECT_EQ(static_cast<int64_t>(group.size()), size);
          for (std::size_t rank = 1; rank < group.size(); ++rank) EXPECT_TRUE(group[rank - 1] < group[rank]);
        }
      }
    }
  }
}

TEST(Groups, only_a_divisor_of_the_number_of_replicas_is_a_group_size) {
  EXPECT_TRUE((Grouping{0, false}).Divides(3));
  EXPECT_TRUE((Grouping{4, false}).Divides(4));
  EXPECT_TRUE(!(Grouping{3, false}).Divides(4));
  EXPECT_TRUE(!(Grouping{8, false}).Divides(4));
  EXPECT_TRUE(!(Grouping{-1, false}).Divides(4));
}

std::vector<Share> Counted(const Group& group, int64_t local) {
  std::vector<Share> shares;
  for (int64_t rank = 0; rank < group.size; ++rank) {
    const int64_t worker = group.Replica(rank) / local;
    if (shares.empty() || shares.back().worker != worker) shares.push_back({worker, rank, 0});
    ++shares.back().count;
  }
  return shares;
}

TEST(Groups, shares_match_counted_ones) {
  for (int64_t workers = 1; workers <= 4; ++workers) {
    for (int64_t local = 1; local <= 6; ++local) {
      const int64_t all = workers * local;
      for (int64_t size = 0; size <= all; ++size) {
        for (const bool orthogonal : {false, true}) {
          const Grouping grouping{size, orthogonal};
          if (!grouping.Divides(all)) continue;
          bool spans = false;
          for (int64_t replica = 0; replica < all; ++replica) {
            const Group group = Group::Of(grouping, replica, all);
            const std::vector<Share> counted = Counted(group, local);
            EXPECT_EQ(SharesOf(group, local), counted);
            spans = spans || counted.size() > 1;
            for (const Share& share : counted) {
              for (int64_t rank = share.first; rank < share.first + share.count; ++rank) {
                EXPECT_EQ(ShareOf(group, local, rank), share);
              }
            }
          }
          EXPECT_EQ(SpansWorkers(grouping, local, workers), spans);
        }
      }
    }
  }
}

}  // namespace
