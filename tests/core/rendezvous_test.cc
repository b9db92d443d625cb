// Tests a rendezvous with one arrival at a time: which replicas wait for each other, which one computes, and how every
// wait ends.
#include "tensorflow_ipu/kernels/collectives/rendezvous.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tensorflow_ipu/kernels/support/waiting.h"
#include "tests/core/rendezvous_fixture.h"
#include "tests/core/threads.h"

namespace {

using namespace check;
using std::chrono::milliseconds;
using Numbers = std::vector<int64_t>;

// A run of replicas, and two call sites of its program.
struct ReplicaRun {
  explicit ReplicaRun(int64_t replicas, std::function<bool()> others_wait = nullptr,
                      std::chrono::nanoseconds watch = milliseconds(250)) {
    replica_group = std::make_shared<ReplicaGroup>("device", std::move(others_wait), watch);
    site = std::make_shared<CallSite>("first", replica_group);
    other = std::make_shared<CallSite>("second", replica_group);
    replica_group->Begin(replicas);
  }

  std::shared_ptr<ReplicaGroup> replica_group;
  std::shared_ptr<CallSite> site;
  std::shared_ptr<CallSite> other;
};

TEST(Rendezvous, the_last_to_arrive_gets_its_result_at_once_and_the_others_by_callbacks) {
  ReplicaRun run(3);
  const auto second = Arrive(*run.site, 1, 3, {20});
  const auto first = Arrive(*run.site, 0, 3, {1});
  EXPECT_TRUE(first->IsOpen() && second->IsOpen());
  EXPECT_EQ(run.replica_group->waiting(), 2);
  const auto last = Arrive(*run.site, 2, 3, {300});
  EXPECT_TRUE(last->at_once);
  for (const auto& arrival : {first, second, last}) EXPECT_TRUE(arrival->HasResult({321}));
  EXPECT_EQ(run.replica_group->waiting(), 0);
}

TEST(Rendezvous, the_next_use_of_a_site_is_another_rendezvous) {
  ReplicaRun run(2);
  for (int64_t use = 0; use < 3; ++use) {
    const auto first = Arrive(*run.site, use % 2, 2, {use});
    EXPECT_TRUE(first->IsOpen());
    const auto other = Arrive(*run.site, 1 - use % 2, 2, {10});
    EXPECT_TRUE(first->HasResult({10 + use}) && other->HasResult({10 + use}));
  }
}

TEST(Rendezvous, sites_do_not_mix) {
  ReplicaRun run(2);
  const auto a = Arrive(*run.site, 0, 2, {1});
  const auto b = Arrive(*run.other, 1, 2, {2});
  EXPECT_TRUE(a->IsOpen() && b->IsOpen());
  Arrive(*run.other, 0, 2, {30});
  Arrive(*run.site, 1, 2, {40});
  EXPECT_TRUE(a->HasResult({41}) && b->HasResult({32}));
}

TEST(Rendezvous, groups_do_not_wait_for_each_other_and_single_replicas_never_wait) {
  for (const bool orthogonal : {false, true}) {
    ReplicaRun run(4);
    EXPECT_TRUE(Arrive(*run.other, 1, 4, {7}, SumOf(1))->at_once);
    const Collective sum = SumOf(2, orthogonal);
    const auto zero = Arrive(*run.site, 0, 4, {1}, sum);
    const auto partner = Arrive(*run.site, orthogonal ? 2 : 1, 4, {10}, sum);
    EXPECT_TRUE(partner->at_once && partner->HasResult({11}) && zero->HasResult({11}));
    const auto three = Arrive(*run.site, 3, 4, {5}, sum);
    EXPECT_TRUE(three->IsOpen());
    EXPECT_TRUE(Arrive(*run.site, orthogonal ? 1 : 2, 4, {6}, sum)->HasResult({11}));
  }
}

TEST(Rendezvous, a_single_replica_needs_no_run) {
  const auto replica_group = std::make_shared<ReplicaGroup>("device");
  CallSite site("alone", replica_group);
  const auto arrival = Arrive(site, 0, 1, {1, 2, 3});
  EXPECT_TRUE(arrival->at_once && arrival->HasResult({1, 2, 3}));
  EXPECT_TRUE(Arrive(site, 0, 1, {1}, SumOf(2))->EndsWith(absl::StatusCode::kInvalidArgument));
}

TEST(Rendezvous, large_work_is_shared_and_calls_every_callback_once) {
  constexpr int64_t kReplicas = 3;
  ReplicaRun run(kReplicas);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::shared_ptr<Arrival>> arrivals;
    for (int64_t replica = 0; replica < kReplicas; ++replica) {
      arrivals.push_back(Arrive(*run.site, replica, kReplicas, Numbers(100000, replica + round)));
    }
    for (const auto& arrival : arrivals) {
      EXPECT_TRUE(arrival->HasResult(Numbers(100000, 3 + 3 * round)));
      EXPECT_EQ(arrival->completed.value(), 1);
    }
  }
}

TEST(Rendezvous, arrivals_that_wait_for_a_replica_fail_at_once_when_it_leaves) {
  ReplicaRun run(3);
  const auto zero = Arrive(*run.site, 0, 3, {1});
  const auto two = Arrive(*run.other, 2, 3, {1});
  run.replica_group->Leave(1);
  for (const auto& arrival : {zero, two}) EXPECT_TRUE(arrival->EndsWith(absl::StatusCode::kFailedPrecondition));
  EXPECT_TRUE(zero->HasMessage("`first`") && zero->HasMessage("reached by replica 0,") &&
              zero->HasMessage("by replica 1,"));
  EXPECT_TRUE(two->HasMessage("`second`") && two->HasMessage("reached by replica 2,"));
  EXPECT_EQ(run.replica_group->waiting(), 0);
}

TEST(Rendezvous, arrivals_after_a_replica_has_left_fail_too) {
  ReplicaRun run(3);
  run.replica_group->Leave(2);
  run.replica_group->Leave(1);
  const auto arrival = Arrive(*run.site, 0, 3, {1});
  EXPECT_TRUE(arrival->at_once && arrival->EndsWith(absl::StatusCode::kFailedPrecondition) &&
              arrival->HasMessage("by replicas 1, 2,"));
}

TEST(Rendezvous, arrivals_after_failed_replicas_have_left_report_the_first_one) {
  ReplicaRun run(3);
  const auto zero = Arrive(*run.site, 0, 3, {1});
  run.replica_group->Leave(1);
  EXPECT_TRUE(zero->Await());
  run.replica_group->Leave(0);
  EXPECT_TRUE(Arrive(*run.site, 2, 3, {1})->HasMessage("never will be by replica 1,"));
}

TEST(Rendezvous, a_replica_that_leaves_affects_only_its_groups) {
  ReplicaRun run(4);
  run.replica_group->Leave(0);
  const auto two = Arrive(*run.site, 2, 4, {1}, SumOf(2));
  const auto one = Arrive(*run.site, 1, 4, {1}, SumOf(2));
  EXPECT_TRUE(two->IsOpen());
  EXPECT_TRUE(one->EndsWith(absl::StatusCode::kFailedPrecondition));
  EXPECT_TRUE(Arrive(*run.site, 3, 4, {2}, SumOf(2))->HasResult({3}));
}

TEST(Rendezvous, abort_fails_waiting_and_later_arrivals) {
  ReplicaRun run(2);
  const auto before = Arrive(*run.site, 0, 2, {1});
  run.replica_group->Abort(absl::OutOfRangeError("replica 1 has no more data"));
  run.replica_group->Abort(absl::CancelledError("too late"));
  const auto after = Arrive(*run.other, 1, 2, {1});
  for (const auto& arrival : {before, after}) {
    EXPECT_TRUE(arrival->EndsWith(absl::StatusCode::kOutOfRange) && arrival->HasMessage("no more data"));
  }
}

TEST(Rendezvous, the_next_run_starts_without_failures) {
  ReplicaRun run(2);
  const auto stale = Arrive(*run.site, 0, 2, {1});
  run.replica_group->Leave(0);
  run.replica_group->Abort(absl::CancelledError("over"));
  run.replica_group->Begin(3);
  EXPECT_TRUE(stale->EndsWith(absl::StatusCode::kCancelled));
  const auto zero = Arrive(*run.site, 0, 3, {1});
  Arrive(*run.site, 1, 3, {2});
  Arrive(*run.site, 2, 3, {3});
  EXPECT_TRUE(zero->HasResult({6}));
}

TEST(Rendezvous, arrivals_that_wait_fail_when_a_run_begins) {
  ReplicaRun run(2);
  const auto stale = Arrive(*run.site, 0, 2, {1});
  run.replica_group->Begin(2);
  EXPECT_TRUE(stale->EndsWith(absl::StatusCode::kCancelled));
  EXPECT_TRUE(Arrive(*run.site, 0, 2, {1})->IsOpen());
}

TEST(Rendezvous, operands_that_differ_fail_all_arrivals_at_the_site) {
  ReplicaRun run(3);
  const auto zero = Arrive(*run.site, 0, 3, {1});
  const auto one = Arrive(*run.site, 1, 3, {1, 2});
  const auto two = Arrive(*run.site, 2, 3, {1});
  for (const auto& arrival : {zero, one, two}) {
    EXPECT_TRUE(arrival->EndsWith(absl::StatusCode::kInvalidArgument));
    EXPECT_TRUE(arrival->HasMessage("`first`") &&
                arrival->HasMessage("replica 0 brings 1 x int64, and replica 1 2 x int64"));
  }
  EXPECT_TRUE(Arrive(*run.other, 0, 3, {1})->IsOpen());
}

TEST(Rendezvous, operations_and_groups_that_differ_fail_all_arrivals) {
  const std::vector<Collective> others = {SumOf(1), SumOf(2, true),
                                          Collective{Kind::kAllReduce, Reduction::kMax, {2, false}, 0},
                                          Collective{Kind::kBroadcast, Reduction::kSum, {2, false}, 0}};
  for (const Collective& other : others) {
    ReplicaRun run(2);
    const auto zero = Arrive(*run.site, 0, 2, {1}, SumOf(2));
    const auto one = Arrive(*run.site, 1, 2, {1}, other);
    for (const auto& arrival : {zero, one}) {
      EXPECT_TRUE(arrival->EndsWith(absl::StatusCode::kInvalidArgument) && arrival->HasMessage("`first`"));
    }
  }
}

TEST(Rendezvous, a_group_size_that_does_not_divide_is_rejected_on_every_replica) {
  ReplicaRun run(4);
  for (int64_t replica = 0; replica < 4; ++replica) {
    const auto arrival = Arrive(*run.site, replica, 4, {1}, SumOf(3));
    EXPECT_TRUE(arrival->EndsWith(absl::StatusCode::kInvalidArgument) && arrival->HasMessage("group size (3)") &&
                arrival->HasMessage("(4)"));
  }
}

TEST(Rendezvous, a_replica_that_arrives_twice_is_rejected) {
  ReplicaRun run(2);
  const auto first = Arrive(*run.site, 0, 2, {1});
  EXPECT_TRUE(Arrive(*run.site, 0, 2, {1})->EndsWith(absl::StatusCode::kInternal));
  EXPECT_TRUE(first->EndsWith(absl::StatusCode::kInternal));
}

TEST(Rendezvous, arrivals_outside_of_a_run_are_rejected) {
  ReplicaRun run(2);
  EXPECT_TRUE(Arrive(*run.site, 0, 4, {1})->EndsWith(absl::StatusCode::kFailedPrecondition));
  EXPECT_TRUE(Arrive(*run.site, 2, 2, {1})->EndsWith(absl::StatusCode::kFailedPrecondition));
  CallSite site("nowhere", std::make_shared<ReplicaGroup>("another"));
  EXPECT_TRUE(Arrive(site, 0, 2, {1})->HasMessage("`another`"));
}

TEST(Rendezvous, a_site_that_is_closed_fails_its_waiting_arrivals) {
  ReplicaRun run(2);
  const auto arrival = Arrive(*run.site, 0, 2, {1});
  run.site->Close();
  EXPECT_TRUE(arrival->EndsWith(absl::StatusCode::kCancelled));
  EXPECT_TRUE(Arrive(*run.site, 1, 2, {1})->EndsWith(absl::StatusCode::kCancelled));
}

TEST(Rendezvous, the_limit_for_waits_ends_a_wait) {
  const WaitLimit limit(milliseconds(5));
  ReplicaRun run(2);
  const auto arrival = Arrive(*run.site, 1, 2, {1});
  EXPECT_TRUE(arrival->EndsWith(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(arrival->HasMessage("replica 1 waited 5 ms for replica 0 in the collective `first`"));
  EXPECT_EQ(run.replica_group->waiting(), 0);
}

// Repeated, because this thread may wait longer for a processor than the limit.
TEST(Rendezvous, a_wait_that_ends_in_time_does_not_fail) {
  EXPECT_TRUE(Becomes([] {
    ReplicaRun run(2);
    const auto zero = [&run] {
      const WaitLimit limit(milliseconds(5));
      return Arrive(*run.site, 0, 2, {1});
    }();
    const auto one = Arrive(*run.site, 1, 2, {1});
    if (!zero->HasResult({2})) return false;
    EXPECT_TRUE(one->status.ok());
    const auto later = Arrive(*run.site, 0, 2, {1});
    EXPECT_FALSE(later->completed.Await(1, kMoment));
    return true;
  }));
}

TEST(Rendezvous, an_interrupted_run_rejects_arrivals) {
  const Interrupted now;
  ReplicaRun run(2);
  EXPECT_TRUE(Arrive(*run.site, 0, 2, {1})->EndsWith(absl::StatusCode::kCancelled));
  EXPECT_TRUE(Arrive(*run.site, 0, 1, {1})->EndsWith(absl::StatusCode::kCancelled));
}

constexpr milliseconds kShortWatch{10};

TEST(Rendezvous, replicas_that_wait_for_each_other_are_detected) {
  ReplicaRun run(2, nullptr, kShortWatch);
  const auto zero = Arrive(*run.site, 0, 2, {1});
  const auto one = Arrive(*run.other, 1, 2, {1});
  for (const auto& arrival : {zero, one}) {
    EXPECT_TRUE(arrival->EndsWith(absl::StatusCode::kFailedPrecondition));
    EXPECT_TRUE(arrival->HasMessage("replica 0 for replica 1 in the collective `first`"));
    EXPECT_TRUE(arrival->HasMessage("replica 1 for replica 0 in the collective `second`"));
  }
}

TEST(Rendezvous, replicas_do_not_fail_while_one_of_them_computes) {
  ReplicaRun run(2, nullptr, kShortWatch);
  EXPECT_FALSE(Arrive(*run.site, 0, 2, {1})->completed.Await(1, 5 * kMoment));
}

TEST(Rendezvous, replicas_do_not_fail_while_they_may_get_data_or_their_process_computes) {
  for (const bool get_data : {true, false}) {
    ReplicaRun run(2, [get_data] { return get_data; }, kShortWatch);
    const auto zero = Arrive(*run.site, 0, 2, {1});
    const auto one = Arrive(*run.other, 1, 2, {1});
    if (get_data) {
      EXPECT_FALSE(one->completed.Await(1, 5 * kMoment));
    } else {
      EXPECT_FALSE(tensorflow_ipu::core::SpinUntil(5 * kMoment, [&] { return !one->IsOpen(); }));
    }
  }
}

TEST(Rendezvous, captures_of_a_callback_are_released_after_its_call) {
  ReplicaRun run(2);
  Count gone;
  Arrival arrival;
  arrival.values = {1};
  arrival.result = {0};
  EXPECT_FALSE(
      run.site->Arrive(0, 2, SumOf(), ContributionOf(arrival), [kept = Held(gone)](absl::Status) {}).has_value());
  EXPECT_EQ(gone.value(), 0);
  const auto last = Arrive(*run.site, 1, 2, {1});
  EXPECT_TRUE(gone.Await());
}

}  // namespace
