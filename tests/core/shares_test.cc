// Which workers have which ranks of a group: the arithmetic against a count one by one.
#include "tensorflow_ipu/kernels/core/shares.h"

#include <cstdint>
#include <vector>

#include "tests/core/check.h"

namespace {

using tensorflow_ipu::core::Group;
using tensorflow_ipu::core::Grouping;
using tensorflow_ipu::core::Share;
using tensorflow_ipu::core::ShareOf;
using tensorflow_ipu::core::SharesOf;
using tensorflow_ipu::core::SpansWorkers;

std::vector<Share> Counted(const Group& group, int64_t local) {
  std::vector<Share> shares;
  for (int64_t rank = 0; rank < group.size; ++rank) {
    const int64_t worker = group.Replica(rank) / local;
    if (shares.empty() || shares.back().worker != worker) shares.push_back({worker, rank, 0});
    ++shares.back().count;
  }
  return shares;
}

TEST(shares_are_what_counting_finds) {
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
            CHECK(SharesOf(group, local) == counted);
            spans = spans || counted.size() > 1;
            for (const Share& share : counted) {
              for (int64_t rank = share.first; rank < share.first + share.count; ++rank) {
                CHECK(ShareOf(group, local, rank) == share);
              }
            }
          }
          CHECK_EQ(SpansWorkers(grouping, local, workers), spans);
        }
      }
    }
  }
}

}  // namespace
