// Tests that replicas of several workers get the same results as replicas of one process, over every communicator.
#include "tensorflow_ipu/kernels/collectives/cross_host_collective.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/core/threads.h"
#include "tests/core/workers_fixture.h"

namespace {

using namespace check;
using Numbers = std::vector<int64_t>;
namespace core = tensorflow_ipu::core;

std::shared_ptr<Arrival> Bring(CallSite& site, int64_t replica, int64_t all, const Collective& collective,
                               const Numbers& values) {
  const auto count = static_cast<int64_t>(values.size());
  const int64_t size = collective.grouping.size == 0 ? all : collective.grouping.size;
  int64_t result_size = count;
  if (collective.kind == Kind::kAllGather) result_size = count * size;
  if (collective.kind == Kind::kReduceScatter) result_size = (count + size - 1) / size;
  return Arrive(site, replica, all, values, collective, static_cast<std::size_t>(result_size));
}

Numbers ValuesOf(int64_t replica, int64_t count) {
  Numbers values;
  for (int64_t i = 0; i < count; ++i) values.push_back((replica + 2) * 1000 + i * (replica % 3 == 0 ? 1 : -1));
  return values;
}

void Compare(int64_t workers, int64_t local, const Collective& collective, int64_t count, bool over_mpi = false) {
  const int64_t all = workers * local;
  DistributedRuns distributed_run(workers, local, kDeadline, over_mpi);
  const auto replica_group = std::make_shared<ReplicaGroup>("device");
  const auto site = std::make_shared<CallSite>("alone", replica_group);
  replica_group->Begin(all);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::shared_ptr<Arrival>> expected;
    std::vector<std::shared_ptr<Arrival>> actual;
    for (int64_t replica = 0; replica < all; ++replica) {
      const Numbers values = ValuesOf(replica + round, count);
      expected.push_back(Bring(*site, replica, all, collective, values));
      actual.push_back(Bring(distributed_run.SiteOf(replica), replica, all, collective, values));
    }
    for (int64_t replica = 0; replica < all; ++replica) {
      const auto index = static_cast<std::size_t>(replica);
      ASSERT_TRUE(expected[index]->Await() && actual[index]->HasResult(expected[index]->result));
    }
  }
}

TEST(CrossHostCollective, several_workers_compute_what_one_worker_computes) {
  for (const Kind kind :
       {Kind::kAllReduce, Kind::kAllGather, Kind::kReduceScatter, Kind::kAllToAll, Kind::kBroadcast}) {
    Compare(3, 2, {kind, Reduction::kMean, {}, 0}, 12);
    Compare(2, 3, {kind, Reduction::kSum, {2, false}, 1}, 4);  // Groups begin in the middle of a worker.
    Compare(4, 2, {kind, Reduction::kMax, {4, true}, 2}, 8);   // Groups have replicas of all workers.
  }
}

TEST(CrossHostCollective, collectives_without_data_complete_at_once) {
  for (const Kind kind : {Kind::kAllReduce, Kind::kAllGather, Kind::kReduceScatter}) {
    Compare(2, 2, {kind, Reduction::kSum, {}, 0}, 0);
  }
  Compare(2, 2, {Kind::kAllReduce, Reduction::kLocal, {}, 0}, 9);  // It has operands, but no messages.
}

// Small chunks cut large operands into many pieces, which three workers reduce in halves.
TEST(CrossHostCollective, large_operands_are_sent_in_chunks) {
  core::SetChunkBytes(std::size_t{1} << 17);
  for (const Kind kind :
       {Kind::kAllReduce, Kind::kAllGather, Kind::kReduceScatter, Kind::kAllToAll, Kind::kBroadcast}) {
    for (const bool over_mpi : {false, true}) {
      for (const int64_t workers : {2, 3}) Compare(workers, 2, {kind, Reduction::kSum, {}, 0}, 100008, over_mpi);
    }
  }
  core::SetChunkBytes(0);
}

// Sums of float16 that would be infinite, or lose small terms, if intermediate results were rounded.
TEST(CrossHostCollective, halves_accumulate_as_floats_over_all_workers) {
  constexpr uint16_t kLarge = 0x7800;  // 32768.
  constexpr uint16_t kNegative = 0xf800;
  constexpr uint16_t kOne = 0x3c00;
  DistributedRuns distributed_run(2, 2);
  const std::vector<uint16_t> values = {kLarge, kLarge, kNegative, kNegative};
  std::vector<uint16_t> results(4, kOne);
  Count completed;
  for (std::size_t replica = 0; replica < 4; ++replica) {
    const core::Contribution contribution = {{DataType::kF16, reinterpret_cast<const std::byte*>(&values[replica]),
                                              reinterpret_cast<std::byte*>(&results[replica]), 1, 1}};
    const auto returned = distributed_run.SiteOf(static_cast<int64_t>(replica))
                              .Arrive(static_cast<int64_t>(replica), 4, SumOf(), contribution,
                                      [&](const absl::Status& status) { completed.Add(status.ok() ? 1 : 100); });
    EXPECT_FALSE(returned.has_value());
  }
  EXPECT_TRUE(completed.Await(4));
  for (const uint16_t result : results) EXPECT_EQ(result, 0);
}

// All workers sum the floats in the same order, so that their results have the same bits.
TEST(CrossHostCollective, sums_are_equal_to_the_bit_on_all_workers) {
  core::SetChunkBytes(std::size_t{1} << 17);
  constexpr int64_t kWorkers = 3;
  constexpr std::size_t kCount = 50001;
  DistributedRuns distributed_run(kWorkers, 1);
  std::vector<std::vector<float>> values(kWorkers, std::vector<float>(kCount));
  uint32_t state = 1;
  for (auto& of_worker : values) {
    for (float& value : of_worker) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<float>(state) / 65536.0f - 30000.0f;
    }
  }
  std::vector<float> expected(kCount);
  for (std::size_t i = 0; i < kCount; ++i) expected[i] = values[0][i] + values[1][i] + values[2][i];
  Count completed;
  for (int64_t worker = 0; worker < kWorkers; ++worker) {
    auto* const data = reinterpret_cast<std::byte*>(values[static_cast<std::size_t>(worker)].data());
    distributed_run.SiteOf(worker).Arrive(
        worker, kWorkers, SumOf(),
        {{DataType::kF32, data, data, static_cast<int64_t>(kCount), static_cast<int64_t>(kCount)}},
        [&](const absl::Status& status) { completed.Add(status.ok() ? 1 : 100); });
  }
  EXPECT_TRUE(completed.Await(kWorkers));
  for (const auto& of_worker : values) EXPECT_EQ(of_worker, expected);
  core::SetChunkBytes(0);
}

TEST(CrossHostCollective, many_collectives_follow_each_other) {
  for (const bool over_mpi : {false, true}) {
    DistributedRuns distributed_run(2, 2, kDeadline, over_mpi);
    Threads threads;
    for (int64_t replica = 0; replica < 4; ++replica) {
      threads.Start([&distributed_run, replica] {
        for (int64_t step = 0; step < 300; ++step) {
          ASSERT_TRUE(distributed_run.ArriveAt(replica, {step + replica})->HasResult({4 * step + 6}));
        }
      });
    }
  }
}

}  // namespace
