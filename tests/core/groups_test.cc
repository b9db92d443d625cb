// What groups.h promises: every replica is in one group, at one rank.
#include "tensorflow_ipu/kernels/core/groups.h"

#include <cstdint>
#include <vector>

#include "tests/core/check.h"

namespace {

using tensorflow_ipu::core::Group;
using tensorflow_ipu::core::Grouping;

// The replicas of each group, group by group, each as its members see it.
std::vector<std::vector<int64_t>> Members(const Grouping& grouping, int64_t replicas) {
  std::vector<std::vector<int64_t>> groups;
  for (int64_t replica = 0; replica < replicas; ++replica) {
    const Group group = Group::Of(grouping, replica, replicas);
    CHECK_EQ(group.Replica(group.rank), replica);
    if (group.number >= static_cast<int64_t>(groups.size())) groups.resize(group.number + 1);
    groups[group.number].resize(group.size, -1);
    groups[group.number][group.rank] = replica;
  }
  return groups;
}

TEST(consecutive_groups_are_of_neighbours) {
  CHECK((Members({2, false}, 8) == std::vector<std::vector<int64_t>>{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
}

TEST(orthogonal_groups_are_as_far_apart_as_there_are_groups) {
  CHECK((Members({2, true}, 8) == std::vector<std::vector<int64_t>>{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  CHECK((Members({4, true}, 8) == std::vector<std::vector<int64_t>>{{0, 2, 4, 6}, {1, 3, 5, 7}}));
}

TEST(size_0_is_one_group_of_all) {
  for (const bool orthogonal : {false, true}) {
    CHECK((Members({0, orthogonal}, 4) == std::vector<std::vector<int64_t>>{{0, 1, 2, 3}}));
  }
}

TEST(every_replica_has_one_place_in_groups_of_every_size) {
  for (const int64_t replicas : {1, 2, 6, 16}) {
    for (int64_t size = 1; size <= replicas; ++size) {
      if (!Grouping{size, false}.Divides(replicas)) continue;
      for (const bool orthogonal : {false, true}) {
        const auto groups = Members({size, orthogonal}, replicas);
        CHECK_EQ(static_cast<int64_t>(groups.size()), replicas / size);
        for (const auto& group : groups) {
          CHECK_EQ(static_cast<int64_t>(group.size()), size);
          for (std::size_t rank = 1; rank < group.size(); ++rank) CHECK(group[rank - 1] < group[rank]);
        }
      }
    }
  }
}

TEST(only_a_size_that_divides_the_replicas_makes_groups) {
  CHECK((Grouping{0, false}).Divides(3));
  CHECK((Grouping{4, false}).Divides(4));
  CHECK(!(Grouping{3, false}).Divides(4));
  CHECK(!(Grouping{8, false}).Divides(4));
  CHECK(!(Grouping{-1, false}).Divides(4));
}

}  // namespace
