// A rendezvous under concurrent arrivals, leaves and failures on few threads: no hang, one status for each arrival, and
// the same sums every time.
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

// A replica's program: in each step it brings a number to every site at once, and continues when all are completed. It
// blocks no thread, as XLA's programs.
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

  // A loop instead of recursion, where the statuses are there at once.
  void Run() {
    while (Step()) continue;
  }

  int64_t done() const { return step_; }
  const absl::Status& failure() const { return failure_; }

 private:
  // Returns whether the next step is to follow on this thread.
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
    // The one that counts last continues; one more, so that no callback overtakes this function.
    left_ = static_cast<int64_t>(sites_.size()) + 1;
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      // Replicas visit the sites in different orders, as threads that run ready operations do.
      const std::size_t at = (i + static_cast<std::size_t>(replica_)) % sites_.size();
      const std::optional<absl::Status> returned =
          sites_[at]->Arrive(replica_, replicas_, SumOf(), ContributionOf(*arrivals_[at]),
                             [self = shared_from_this(), at](absl::Status status) {
                               self->Note(at, std::move(status));
                               if (--self->left_ == 0 && self->Finish()) self->Run();
                             });
      if (returned.has_value()) {
        Note(at, *returned);
        --left_;
      }
    }
    return --left_ == 0 && Finish();
  }

  void Note(std::size_t at, absl::Status status) { arrivals_[at]->status = std::move(status); }

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
  std::atomic<int64_t> left_{0};
};

struct Fleet {
  Fleet(int64_t replicas, int64_t sites, std::chrono::nanoseconds watch = std::chrono::milliseconds(250))
      : replicas(replicas), replica_group(std::make_shared<ReplicaGroup>("device", nullptr, watch)) {
    for (int64_t i = 0; i < sites; ++i)
      all_sites.push_back(std::make_shared<CallSite>("site " + std::to_string(i), replica_group));
  }

  // Runs a program of `steps` on each replica, and `meanwhile`. `steps_of` may end some earlier.
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

TEST(RendezvousStress, whenever_a_replica_leaves_the_others_end_too) {
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

TEST(RendezvousStress, whenever_a_run_is_aborted_all_replicas_end) {
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

TEST(RendezvousStress, the_watch_finds_no_fault_with_replicas_that_move) {
  Fleet fleet(4, 2, std::chrono::milliseconds(1));
  fleet.Run([](int64_t) { return 2000; });
  for (const auto& program : fleet.programs) EXPECT_EQ(program->done(), 2000);
}

}  // namespace
