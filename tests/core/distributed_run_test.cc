// How a run on several workers ends when they do different things: each wait ends with a message that names the worker.
#include "tensorflow_ipu/kernels/collectives/distributed_run.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/core/check.h"
#include "tests/core/threads.h"
#include "tests/core/workers_fixture.h"

namespace {

using std::chrono::milliseconds;
using namespace check;
using namespace tensorflow_ipu::core;

TEST(a_worker_that_is_gone_ends_the_wait_at_once_and_what_comes_later) {
  DistributedRuns distributed_run(2, 2);
  for (const bool later : {false, true}) {
    const auto arrivals = {distributed_run.ArriveAt(0, {1}), distributed_run.ArriveAt(1, {2})};
    if (!later) distributed_run.exchange->Kill(1);
    for (const auto& arrival : arrivals) {
      CHECK(arrival->EndsWith(Code::kUnavailable));
      CHECK(arrival->Says("worker 1 (host1) is gone") && arrival->Says("`first`"));
    }
  }
}

TEST(a_worker_that_ends_early_is_told) {
  DistributedRuns distributed_run(2, 1, std::chrono::seconds(100));
  CHECK(distributed_run.ArriveAt(0, {1})->IsOpen());
  CHECK(distributed_run.ArriveAt(1, {1})->Await());
  const auto late = distributed_run.ArriveAt(0, {1});
  distributed_run.runs[1]->End(Status::Ok());
  CHECK(late->EndsWith(Code::kUnavailable));
  CHECK(late->Says("worker 1 (host1) ended its run of `train` after 1 collective,"));
}

TEST(a_worker_that_fails_is_told_with_its_words) {
  DistributedRuns distributed_run(2, 1);
  const auto arrival = distributed_run.ArriveAt(0, {1});
  distributed_run.runs[1]->End(Status::OutOfRange("The data end."));
  CHECK(arrival->EndsWith(Code::kUnavailable));
  CHECK(arrival->Says("worker 1 (host1) failed in its run of `train`") && arrival->Says("The data end."));
}

TEST(a_worker_that_does_not_come_is_told_at_the_limit) {
  DistributedRuns distributed_run(2, 1, milliseconds(200));
  const auto arrival = distributed_run.ArriveAt(0, {1});
  CHECK(arrival->EndsWith(Code::kDeadlineExceeded));
  CHECK(arrival->Says("worker 1 (host1) runs the same program and did not come there") && arrival->Says("0.2 s"));
}

TEST(a_worker_that_has_not_begun_is_told_at_the_limit) {
  DistributedRuns distributed_run(2, 1, milliseconds(200));
  for (const int64_t worker : {0, 1, 0}) distributed_run.Begin(worker, {"a sum", "another sum"}, true);
  const auto arrival = distributed_run.ArriveAt(0, {1});
  CHECK(arrival->EndsWith(Code::kDeadlineExceeded));
  CHECK(arrival->Says("worker 1 (host1) did not begin this run"));
}

// Unless this worker has left that exchange, which the other one then still has to end.
TEST(a_worker_that_waits_in_an_exchange_of_the_host_is_told_before_the_limit) {
  for (const bool left : {false, true}) {
    DistributedRuns distributed_run(2, 1, left ? milliseconds(200) : milliseconds(100000));
    const auto theirs = distributed_run.BeginExchange(1, "a mean (what is printed)");
    if (left) distributed_run.BeginExchange(0, "a mean (what is printed)")->End(Status::Cancelled("Enough."));
    distributed_run.Begin(0, {"a sum", "another sum"}, true);
    const auto arrival = distributed_run.ArriveAt(0, {1});
    CHECK(arrival->EndsWith(left ? Code::kDeadlineExceeded : Code::kUnavailable));
    CHECK(arrival->Says("worker 1 (host1) did not begin this run"));
    CHECK_EQ(arrival->Says("it does something else, hangs, or was stopped"), left);
    CHECK_EQ(arrival->Says("of `train`: it waits for all workers to exchange a mean (what is printed), while worker 0 "
                           "waits for it in the collective `first`"),
             !left);
  }
}

TEST(another_program_is_told_by_what_differs) {
  struct Case {
    std::vector<std::string> collectives;
    const char* words;
  };
  const std::vector<Case> cases = {
      {{"a sum", "a product"},
       "collective 2 of its `train` is a product, and of `train` on this worker it is another sum"},
      {{"a sum"}, "its `train` has 1 collective, and `train` on this worker has 2"},
  };
  for (const Case& each : cases) {
    DistributedRuns distributed_run(2, 1);
    for (const int64_t worker : {0, 1}) {
      distributed_run.Begin(worker, worker == 1 ? each.collectives : std::vector<std::string>{"a sum", "another sum"});
    }
    const auto ours = distributed_run.ArriveAt(0, {1});
    const auto theirs = distributed_run.ArriveAt(1, {1});
    CHECK(ours->EndsWith(Code::kInvalidArgument));
    CHECK(ours->Says("worker 1 (host1)") && ours->Says(each.words));
    CHECK(theirs->EndsWith(Code::kInvalidArgument));
    CHECK(theirs->Says("worker 0 (host0)"));
  }
}

// The types and sizes that a program was traced with may leave shapes open.
TEST(operands_of_another_size_are_told) {
  DistributedRuns distributed_run(2, 1);
  const auto ours = distributed_run.ArriveAt(0, {1});
  const auto theirs = distributed_run.ArriveAt(1, {1, 2});
  for (const auto& arrival : {ours, theirs}) {
    CHECK(arrival->Await() && !arrival->status.ok());
  }
  CHECK(ours->status.code == Code::kInvalidArgument || theirs->status.code == Code::kInvalidArgument);
}

TEST(an_abort_ends_what_crosses) {
  DistributedRuns distributed_run(2, 2);
  const auto arrivals = {distributed_run.ArriveAt(0, {1}), distributed_run.ArriveAt(1, {1})};
  distributed_run.replica_groups[0]->Abort(Status::Cancelled("Enough."));
  for (const auto& arrival : arrivals) CHECK(arrival->EndsWith(Code::kCancelled));
}

TEST(replicas_of_a_process_that_ended_are_told_before_anything_crosses) {
  DistributedRuns distributed_run(2, 2);
  const auto arrival = distributed_run.ArriveAt(2, {1});
  distributed_run.replica_groups[1]->Leave(3);
  CHECK(arrival->EndsWith(Code::kFailedPrecondition));
  CHECK(arrival->Says("replica 2") && arrival->Says("replica 3"));
}

TEST(the_next_run_goes_on_after_a_failed_one) {
  DistributedRuns distributed_run(2, 1);
  const auto failed = distributed_run.ArriveAt(0, {1});
  distributed_run.runs[1]->End(Status::OutOfRange("The data end."));
  CHECK(failed->EndsWith(Code::kUnavailable));
  distributed_run.runs[0]->End(failed->status);
  for (const int64_t worker : {0, 1}) distributed_run.Begin(worker);
  const auto first = distributed_run.ArriveAt(0, {1});
  const auto second = distributed_run.ArriveAt(1, {2});
  CHECK(first->Gives({3}) && second->Gives({3}));
}

// A thread that has just handed over a message may be the last that holds its run, so this check came too early.
TEST(nothing_is_left_when_runs_are_gone) {
  auto distributed_run = std::make_unique<DistributedRuns>(2, 1);
  const auto exchange = distributed_run->exchange;
  const auto arrival = distributed_run->ArriveAt(0, {1});
  distributed_run->runs[0]->End(Status::Cancelled("Enough."));
  CHECK(arrival->Await());
  distributed_run.reset();
  CHECK(exchange->AwaitNone());
}

}  // namespace
