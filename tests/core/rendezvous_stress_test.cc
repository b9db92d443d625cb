// Tests a rendezvous under concurrent arrivals, leaves and failures on few threads: no hang, one status for each
// arrival, and the same sums every time.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tensorflow_ipu/kernels/collectives/rendezvous.h"
#include "tensorflow_ipu/kernels/support/threads.h"
#include "tensorflow_ipu/kernels/support/waiting.h"
#include "tests/core/rendezvous_fixture.h"
#include "tests/core/threads.h"

namespace {

using namespace check;
using tensorflow_ipu::core::Executor;

// A replica's program. In each step it contributes a number at all sites at the same time, and continues when all
// collectives are completed. Like XLA's programs, it blocks no thread.
class Program : public std::enable_shared_from_this<Program> {
 public:
  Program(std::shared_ptr<ReplicaGroup> replica_group, std::vector<std::shared_ptr<CallSite>> sites, int64_t replica,
          int64_t replicas, int64_t steps, Count* ended)
      : replica_group_(std::move(replica_group)),
        sites_(std::move(sites)),
        replica_(replica),
        replicas_(replicas),
        steps_(steps),
        ended_(ended) {}

  // Uses a loop instead of recursion if the statuses are returned at once.
  void Run() {
    while (Step()) continue;
  }

  int64_t done() const { return step_; }
  const absl::Status& failure() const { return failure_; }

 private:
  // Returns true if the next step should follow on this thread.
  bool Step() {
    if (step_ == steps_ || !failure_.ok()) {
      replica_group_->Leave(replica_);
      ended_->Add();
      return false;
    }
    arrivals_.clear();
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      arrivals_.push_back(std::make_shared<Arrival>());
      arrivals_.back()->values.assign(count_of_ * (i + 1), Number(replica_, i));
      arrivals_.back()->result.resize(count_of_ * (i + 1));
    }
    // The thread that counts last continues. One more is counted, so that no callback overtakes this function.
    remaining_ = static_cast<int64_t>(sites_.size()) + 1;
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      // Replicas visit the sites in different orders, like threads that run ready operations.
      const std::size_t site = (i + static_cast<std::size_t>(replica_)) % sites_.size();
      const std::optional<absl::Status> returned =
          sites_[site]->Arrive(replica_, replicas_, SumOf(), ContributionOf(*arrivals_[site]),
                               [self = shared_from_this(), site](absl::Status status) {
                                 self->Note(site, std::move(status));
                                 if (--self->remaining_ == 0 && self->Finish()) self->Run();
                               });
      if (returned.has_value()) {
        Note(site, *returned);
        --remaining_;
      }
    }
    return --remaining_ == 0 && Finish();
  }

  void Note(std::size_t site, absl::Status status) { arrivals_[site]->status = std::move(status); }

  bool Finish() {
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      if (!arrivals_[i]->status.ok()) {
        failure_ = arrivals_[i]->status;
        return true;
      }
      int64_t sum = 0;
      for (int64_t replica = 0; replica < replicas_; ++replica) sum += Number(replica, i);
      EXPECT_EQ(arrivals_[i]->result.front(), sum);
      EXPECT_EQ(arrivals_[i]->result.back(), sum);
    }
    ++step_;
    return true;
  }

  int64_t Number(int64_t replica, std::size_t site) const {
    return (step_ + 1) * 1000 + replica * 10 + static_cast<int64_t>(site);
  }

  const std::shared_ptr<ReplicaGroup> replica_group_;
  const std::vector<std::shared_ptr<CallSite>> sites_;
  const int64_t replica_;
  const int64_t replicas_;
  const int64_t steps_;
  Count* const ended_;
  const std::size_t count_of_ = 3;
  int64_t step_ = 0;
  absl::Status failure_;
  std::vector<std::shared_ptr<Arrival>> arrivals_;
  std::atomic<int64_t> remaining_{0};
};

struct Fleet {
  Fleet(int64_t replicas, int64_t sites, std::chrono::nanoseconds watch = std::chrono::milliseconds(250))
      : replicas(replicas), replica_group(std::make_shared<ReplicaGroup>("device", nullptr, watch)) {
    for (int64_t i = 0; i < sites; ++i)
      all_sites.push_back(std::make_shared<CallSite>("site " + std::to_string(i), replica_group));
  }

  // Runs a program on each replica, and `meanwhile`. `steps_of` returns the number of steps of a replica, so that some
  // may end early.
  void Run(const std::function<int64_t(int64_t)>& steps_of, const std::function<void()>& meanwhile = nullptr) {
    replica_group->Begin(replicas);
    Count ended;
    programs.clear();
    for (int64_t replica = 0; replica < replicas; ++replica) {
      programs.push_back(
          std::make_shared<Program>(replica_group, all_sites, replica, replicas, steps_of(replica), &ended));
      Executor::Global().Run([program = programs.back()](const absl::Status&) { program->Run(); });
    }
    if (meanwhile) meanwhile();
    const bool all = ended.Await(replicas);
    EXPECT_TRUE(all);
    if (!all) replica_group->Abort(absl::CancelledError("a test that failed"));
    EXPECT_TRUE(ended.Await(replicas));
    EXPECT_EQ(replica_group->waiting(), 0);
  }

  const int64_t replicas;
  const std::shared_ptr<ReplicaGroup> replica_group;
  std::vector<std::shared_ptr<CallSite>> all_sites;
  std::vector<std::shared_ptr<Program>> programs;
};

TEST(RendezvousStress, sixteen_replicas_with_six_collectives_in_flight_never_hang) {
  Fleet fleet(16, 6);
  for (int round = 0; round < 20; ++round) {
    fleet.Run([](int64_t) { return 25; });
    for (const auto& program : fleet.programs) EXPECT_EQ(program->done(), 25);
  }
}

TEST(RendezvousStress, two_replicas_take_thousands_of_steps) {
  Fleet fleet(2, 1);
  fleet.Run([](int64_t) { return 20000; });
  for (const auto& program : fleet.programs) EXPECT_EQ(program->done(), 20000);
}

TEST(RendezvousStress, all_replicas_end_whenever_one_leaves) {
  Fleet fleet(8, 3);
  for (int round = 0; round < 100; ++round) {
    const int64_t early = round % 8;
    fleet.Run([&](int64_t replica) { return replica == early ? round % 5 : 50; });
    for (int64_t replica = 0; replica < 8; ++replica) {
      const Program& program = *fleet.programs[replica];
      EXPECT_EQ(program.done(), round % 5);
      if (replica == early) continue;
      EXPECT_EQ(program.failure().code(), absl::StatusCode::kFailedPrecondition);
    }
  }
}

TEST(RendezvousStress, all_replicas_end_whenever_a_run_is_aborted) {
  Fleet fleet(8, 3);
  for (int round = 0; round < 100; ++round) {
    fleet.Run([](int64_t) { return 100000000; },
              [&] {
                tensorflow_ipu::core::SpinUntil(std::chrono::microseconds(round * 7), [] { return false; });
                fleet.replica_group->Abort(absl::OutOfRangeError("over"));
              });
    for (const auto& program : fleet.programs) EXPECT_EQ(program->failure().code(), absl::StatusCode::kOutOfRange);
  }
}

TEST(RendezvousStress, limits_of_waits_that_race_with_arrivals_end_the_run_or_do_not) {
  Fleet fleet(4, 2);
  for (int round = 0; round < 100; ++round) {
    const WaitLimit limit(std::chrono::nanoseconds(1 + 977 * round));
    fleet.Run([](int64_t) { return 200; });
    for (const auto& program : fleet.programs) EXPECT_TRUE(program->done() == 200 || !program->failure().ok());
  }
}

TEST(RendezvousStress, the_watchdog_does_not_fail_replicas_that_make_progress) {
  Fleet fleet(4, 2, std::chrono::milliseconds(1));
  fleet.Run([](int64_t) { return 2000; });
  for (const auto& program : fleet.programs) EXPECT_EQ(program->done(), 2000);
}

}  // namespace
