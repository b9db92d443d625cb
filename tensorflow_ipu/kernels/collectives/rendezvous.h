// The rendezvous of a run's replicas in collectives.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/collectives/distributed_run.h"
#include "tensorflow_ipu/kernels/collectives/exchange.h"
#include "tensorflow_ipu/kernels/support/completions.h"
#include "tensorflow_ipu/kernels/support/groups.h"
#include "tensorflow_ipu/kernels/support/threads.h"

namespace tensorflow_ipu::core {

class CallSite;

// The replicas of one device, and their current run.
//
// Runs never deadlock for lack of threads: Arrive does not block, and a callback that resumes a program returns at the
// program's next wait. A wait ends in one of four ways: with the last arrival of the group, with the Leave of a missing
// replica, with Abort, or after the limit for waits.
//
// Replicas that take the same branches run one executable. Its data dependencies define the same partial order of
// collectives for all replicas, so all replicas reach the first open collective. Replicas that take different branches
// can wait for each other in a cycle. A watchdog fails the run if all of its replicas wait, none arrives, none waits
// for a feed, and no thread of the process is runnable.
//
// Replicas are numbered over all workers; each worker runs a range of them. In a group that spans workers, the replicas
// of each process rendezvous first. Then one cross-host collective combines the data of the processes. The distributed
// run has a separate limit for waits.
//
// Thread-safe; must be owned by a shared_ptr.
class ReplicaGroup : public std::enable_shared_from_this<ReplicaGroup> {
 public:
  // `others_wait` returns true if a program waits for something other than a collective, such as an infeed. A deadlock
  // is detected after two to three times `watch`.
  explicit ReplicaGroup(std::string device, std::function<bool()> others_wait = nullptr,
                        std::chrono::nanoseconds watch = std::chrono::milliseconds(250));

  // Starts a run; open waits of the preceding run fail. This process runs the replicas from worker * replicas on.
  // `distributed_run` is null if no collective spans workers; otherwise `sites` are the call sites of those
  // collectives, in the order of tracing.
  void Begin(int64_t replicas, int64_t worker = 0, int64_t workers = 1,
             std::shared_ptr<DistributedRun> distributed_run = nullptr,
             const std::vector<std::shared_ptr<CallSite>>& sites = {}) ABSL_LOCKS_EXCLUDED(mutex_);

  // Reports that the program of a replica has ended. `replica` is numbered over all workers.
  void Leave(int64_t replica) ABSL_LOCKS_EXCLUDED(mutex_);

  // Fails the open waits and all later arrivals of this run. Only the first status counts.
  void Abort(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the number of arrivals that wait.
  int64_t waiting() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class CallSite;
  struct PendingCollective;

  void Close(PendingCollective& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const std::shared_ptr<PendingCollective>& pending, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailAll(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AllWait() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t Local() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return static_cast<int64_t>(here_.size()); }
  bool IsHere(int64_t replica) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return here_[replica - first_]; }
  Share ShareOf(const Group& group) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WatchLater() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void GiveUp(const std::weak_ptr<PendingCollective>& weak, int64_t limit) ABSL_LOCKS_EXCLUDED(mutex_);
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string device_;
  const std::function<bool()> others_wait_;
  const std::chrono::nanoseconds watch_;

  mutable absl::Mutex mutex_;  // Also guards the pending collectives.
  int64_t run_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t first_ ABSL_GUARDED_BY(mutex_) = 0;  // The first replica of this process.
  int64_t all_ ABSL_GUARDED_BY(mutex_) = 0;    // The number of replicas of all workers.
  std::shared_ptr<DistributedRun> distributed_run_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> here_ ABSL_GUARDED_BY(mutex_);      // By replica of this process: true while its program runs.
  std::vector<int64_t> waits_ ABSL_GUARDED_BY(mutex_);  // By replica: the number of its arrivals that wait.
  std::optional<absl::Status> aborted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<PendingCollective>> open_ ABSL_GUARDED_BY(mutex_);
  int64_t arrivals_ ABSL_GUARDED_BY(mutex_) = 0;

  // What the watchdog observed at its latest check.
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t seen_arrivals_ ABSL_GUARDED_BY(mutex_) = 0;
  std::clock_t seen_clock_ ABSL_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point seen_at_ ABSL_GUARDED_BY(mutex_);
  int idle_looks_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A call site of a collective in a program. The k-th use by one replica is matched with the k-th use by every other
// replica of its group. A replica's uses depend on each other, so a group has at most one pending collective.
// Thread-safe; must be owned by a shared_ptr.
class CallSite : public std::enable_shared_from_this<CallSite> {
 public:
  // `what` describes the collective to other workers. It is empty if no data is exchanged.
  CallSite(std::string name, std::shared_ptr<ReplicaGroup> replica_group, std::string what = "",
           const Grouping& grouping = {})
      : name_(std::move(name)), replica_group_(std::move(replica_group)), what_(std::move(what)), grouping_(grouping) {}

  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;

  const std::string& name() const { return name_; }
  const std::string& what() const { return what_; }

  bool SpansWorkers(int64_t local, int64_t workers) const {
    return !what_.empty() && core::SpansWorkers(grouping_, local, workers);
  }

  // Adds the contribution of a replica. The buffers must stay alive until a status is returned or, if none is returned,
  // until `callback` is called. If `replicas` is 1, no run needs to be active.
  std::optional<absl::Status> Arrive(int64_t replica, int64_t replicas, const Collective& collective,
                                     Contribution contribution, Callback callback);

  // Fails all waits, because the program is deleted.
  void Close();

 private:
  friend class ReplicaGroup;
  using PendingCollective = ReplicaGroup::PendingCollective;

  absl::Status PerformAlone(const Collective& collective, Contribution contribution) const;
  std::string Called() const;
  absl::Status Here(const absl::Status& status) const;
  absl::Status Interrupted() const;

  // The first overload returns an error if a replica may not arrive at this site. The second one returns an error if it
  // may not join the pending collective of its group; `pending` may be null.
  absl::Status Refusal(int64_t replica, int64_t replicas, const Collective& collective)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(replica_group_->mutex_);
  absl::Status Refusal(const Group& group, const Share& share, const PendingCollective* pending,
                       const Collective& collective, const Contribution& contribution)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(replica_group_->mutex_);

  std::shared_ptr<PendingCollective> Open(const Group& group, const Share& share)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(replica_group_->mutex_);
  void Cross(const std::shared_ptr<DistributedRun>& distributed_run, const std::string& key,
             const Collective& collective, PendingCollective& pending, int64_t local);

  // Returns the error of a group that can never be complete, because a replica has left. The first error is kept, since
  // more replicas may leave later because of the failure.
  absl::Status NeverComplete(const Group& group, const std::string& arrived)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(replica_group_->mutex_);

  absl::Status Fail(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(replica_group_->mutex_);

  const std::string name_;
  const std::shared_ptr<ReplicaGroup> replica_group_;
  const std::string what_;
  const Grouping grouping_;
  const std::shared_ptr<RunningMedian> run_time_ = std::make_shared<RunningMedian>();

  // Reset for each run of the replica group.
  int64_t run_ ABSL_GUARDED_BY(replica_group_->mutex_) = 0;
  std::optional<Collective> collective_ ABSL_GUARDED_BY(replica_group_->mutex_);  // Set by the first arrival.
  std::optional<absl::Status> failure_ ABSL_GUARDED_BY(replica_group_->mutex_);
  std::vector<std::shared_ptr<PendingCollective>> pending_
      ABSL_GUARDED_BY(replica_group_->mutex_);  // The open collective of each group, or null.
  std::map<int64_t, absl::Status> lost_ ABSL_GUARDED_BY(replica_group_->mutex_);  // By group: see `NeverComplete`.
  // By group: the number of uses that spanned workers.
  std::map<int64_t, int64_t> uses_ ABSL_GUARDED_BY(replica_group_->mutex_);
  int64_t ordinal_ ABSL_GUARDED_BY(replica_group_->mutex_) = 0;  // Its index among the sites of a distributed run.
};

}  // namespace tensorflow_ipu::core
