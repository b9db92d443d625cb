// Tests how a run on several workers ends when they run different things: each wait ends with a message that names the
// worker.
#include "tensorflow_ipu/kernels/collectives/distributed_run.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/core/threads.h"
#include "tests/core/workers_fixture.h"

namespace {

using std::chrono::milliseconds;
using namespace check;
using namespace tensorflow_ipu::core;

TEST(DistributedRun, a_worker_that_died_ends_waits_at_once_and_later_arrivals) {
  DistributedRuns distributed_run(2, 2);
  for (const bool later : {false, true}) {
    const auto arrivals = {distributed_run.ArriveAt(0, {1}), distributed_run.ArriveAt(1, {2})};
    if (!later) distributed_run.exchange->Kill(1);
    for (const auto& arrival : arrivals) {
      EXPECT_TRUE(arrival->EndsWith(absl::StatusCode::kUnavailable));
      EXPECT_TRUE(arrival->HasMessage("worker 1 (host1) is gone") && arrival->HasMessage("`first`"));
    }
  }
}

TEST(DistributedRun, a_worker_that_ends_early_is_reported) {
  DistributedRuns distributed_run(2, 1, std::chrono::seconds(100));
  EXPECT_TRUE(distributed_run.ArriveAt(0, {1})->IsOpen());
  EXPECT_TRUE(distributed_run.ArriveAt(1, {1})->Await());
  const auto late = distributed_run.ArriveAt(0, {1});
  distributed_run.runs[1]->End(absl::OkStatus());
  EXPECT_TRUE(late->EndsWith(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(late->HasMessage("worker 1 (host1) ended its run of `train` after 1 collective,"));
}

TEST(DistributedRun, a_worker_that_fails_is_reported_with_its_message) {
  DistributedRuns distributed_run(2, 1);
  const auto arrival = distributed_run.ArriveAt(0, {1});
  distributed_run.runs[1]->End(absl::OutOfRangeError("The data end."));
  EXPECT_TRUE(arrival->EndsWith(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(arrival->HasMessage("worker 1 (host1) failed in its run of `train`") &&
              arrival->HasMessage("The data end."));
}

TEST(DistributedRun, a_worker_that_does_not_arrive_is_reported_at_the_limit) {
  DistributedRuns distributed_run(2, 1, milliseconds(200));
  const auto arrival = distributed_run.ArriveAt(0, {1});
  EXPECT_TRUE(arrival->EndsWith(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(arrival->HasMessage("worker 1 (host1) runs the same program and has not reached this collective") &&
              arrival->HasMessage("0.2 s"));
}

TEST(DistributedRun, a_worker_that_has_not_begun_is_reported_at_the_limit) {
  DistributedRuns distributed_run(2, 1, milliseconds(200));
  for (const int64_t worker : {0, 1, 0}) distributed_run.Begin(worker, {"a sum", "another sum"}, true);
  const auto arrival = distributed_run.ArriveAt(0, {1});
  EXPECT_TRUE(arrival->EndsWith(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(arrival->HasMessage("worker 1 (host1) did not begin this run"));
}

// This holds unless this worker has left that exchange. The other worker must end it then.
TEST(DistributedRun, a_worker_that_waits_in_an_exchange_of_the_host_is_reported_before_the_limit) {
  for (const bool left : {false, true}) {
    DistributedRuns distributed_run(2, 1, left ? milliseconds(200) : milliseconds(100000));
    const auto theirs = distributed_run.BeginExchange(1, "a mean (what is printed)");
    if (left) distributed_run.BeginExchange(0, "a mean (what is printed)")->End(absl::CancelledError("Enough."));
    distributed_run.Begin(0, {"a sum", "another sum"}, true);
    const auto arrival = distributed_run.ArriveAt(0, {1});
    EXPECT_TRUE(arrival->EndsWith(left ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kUnavailable));
    EXPECT_TRUE(arrival->HasMessage("worker 1 (host1) did not begin this run"));
    EXPECT_EQ(arrival->HasMessage("it runs something else, hangs, or was stopped"), left);
    EXPECT_EQ(
        arrival->HasMessage("of `train`: it waits for all workers to exchange a mean (what is printed), while worker 0 "
                            "waits for it in the collective `first`"),
        !left);
  }
}

TEST(DistributedRun, another_program_is_reported_with_its_differences) {
  struct Case {
    std::vector<std::string> collectives;
    const char* words;
  };
  const std::vector<Case> cases = {
      {{"a sum", "a product"},
       "collective 2 of its `train` is a product, and of `train` on this worker it is another sum"},
      {{"a sum"}, "its `train` has 1 collective, and `train` on this worker has 2"},
  };
  for (const Case& difference : cases) {
    DistributedRuns distributed_run(2, 1);
    for (const int64_t worker : {0, 1}) {
      distributed_run.Begin(worker,
                            worker == 1 ? difference.collectives : std::vector<std::string>{"a sum", "another sum"});
    }
    const auto ours = distributed_run.ArriveAt(0, {1});
    const auto theirs = distributed_run.ArriveAt(1, {1});
    EXPECT_TRUE(ours->EndsWith(absl::StatusCode::kInvalidArgument));
    EXPECT_TRUE(ours->HasMessage("worker 1 (host1)") && ours->HasMessage(difference.words));
    EXPECT_TRUE(theirs->EndsWith(absl::StatusCode::kInvalidArgument));
    EXPECT_TRUE(theirs->HasMessage("worker 0 (host0)"));
  }
}

// The shapes of a traced program may be unknown in the types and sizes that workers compare.
TEST(DistributedRun, operands_of_another_size_are_reported) {
  DistributedRuns distributed_run(2, 1);
  const auto ours = distributed_run.ArriveAt(0, {1});
  const auto theirs = distributed_run.ArriveAt(1, {1, 2});
  for (const auto& arrival : {ours, theirs}) {
    EXPECT_TRUE(arrival->Await() && !arrival->status.ok());
  }
  EXPECT_TRUE(ours->status.code() == absl::StatusCode::kInvalidArgument ||
              theirs->status.code() == absl::StatusCode::kInvalidArgument);
}

TEST(DistributedRun, an_abort_ends_cross_host_collectives) {
  DistributedRuns distributed_run(2, 2);
  const auto arrivals = {distributed_run.ArriveAt(0, {1}), distributed_run.ArriveAt(1, {1})};
  distributed_run.replica_groups[0]->Abort(absl::CancelledError("Enough."));
  for (const auto& arrival : arrivals) EXPECT_TRUE(arrival->EndsWith(absl::StatusCode::kCancelled));
}

TEST(DistributedRun, replicas_of_a_process_that_ended_are_reported_before_messages_are_sent) {
  DistributedRuns distributed_run(2, 2);
  const auto arrival = distributed_run.ArriveAt(2, {1});
  distributed_run.replica_groups[1]->Leave(3);
  EXPECT_TRUE(arrival->EndsWith(absl::StatusCode::kFailedPrecondition));
  EXPECT_TRUE(arrival->HasMessage("replica 2") && arrival->HasMessage("replica 3"));
}

TEST(DistributedRun, the_next_run_works_after_a_failed_one) {
  DistributedRuns distributed_run(2, 1);
  const auto failed = distributed_run.ArriveAt(0, {1});
  distributed_run.runs[1]->End(absl::OutOfRangeError("The data end."));
  EXPECT_TRUE(failed->EndsWith(absl::StatusCode::kUnavailable));
  distributed_run.runs[0]->End(failed->status);
  for (const int64_t worker : {0, 1}) distributed_run.Begin(worker);
  const auto first = distributed_run.ArriveAt(0, {1});
  const auto second = distributed_run.ArriveAt(1, {2});
  EXPECT_TRUE(first->HasResult({3}) && second->HasResult({3}));
}

// A regression of the test: a thread that has just passed on a message may be the last owner of its run, so this check
// was too early.
TEST(DistributedRun, no_call_is_open_after_runs_are_deleted) {
  auto distributed_run = std::make_unique<DistributedRuns>(2, 1);
  const auto exchange = distributed_run->exchange;
  const auto arrival = distributed_run->ArriveAt(0, {1});
  distributed_run->runs[0]->End(absl::CancelledError("Enough."));
  EXPECT_TRUE(arrival->Await());
  distributed_run.reset();
  EXPECT_TRUE(exchange->AwaitNone());
}

}  // namespace
