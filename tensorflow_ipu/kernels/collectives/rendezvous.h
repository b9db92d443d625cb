// Where the replicas of a run meet in collectives.
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
// No run deadlocks: Arrive never blocks a thread, and resumed programs return at their next wait. A wait ends with the
// last arrival of the group, with the Leave of a replica that is waited for, with Abort, or after the limit for waits.
// Replicas that take the same branches run one executable, whose data dependencies order its collectives partially, so
// all arrive at the first open one. Replicas that take different branches can wait for each other. A watchdog fails the
// run once all of its replicas wait, none arrives, none waits for a feed, and no thread of the process is runnable.
//
// Each worker has the replicas of one group, numbered over all workers. In a group that spans workers, the replicas of
// a process meet first, and then one cross-host collective exchanges their data. The distributed run has a limit of its
// own.
//
// Thread-safe; lives in a shared_ptr.
class ReplicaGroup : public std::enable_shared_from_this<ReplicaGroup> {
 public:
  // `others_wait` says whether a program waits for something else, such as data. A deadlock is found after two to three
  // times `watch`.
  explicit ReplicaGroup(std::string device, std::function<bool()> others_wait = nullptr,
                        std::chrono::nanoseconds watch = std::chrono::milliseconds(250));

  // Starts a run; waits of the run before fail. This process has the replicas from worker * replicas on.
  // `distributed_run` is null if no collective spans workers; else `sites` are the call sites that do, in the order of
  // the trace.
  void Begin(int64_t replicas, int64_t worker = 0, int64_t workers = 1,
             std::shared_ptr<DistributedRun> distributed_run = nullptr,
             const std::vector<std::shared_ptr<CallSite>>& sites = {}) ABSL_LOCKS_EXCLUDED(mutex_);

  // The program of a replica has ended. `replica` is numbered over all workers.
  void Leave(int64_t replica) ABSL_LOCKS_EXCLUDED(mutex_);

  // Fails waiting and later arrivals of this run; the first status counts.
  void Abort(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);

  // Arrivals that wait.
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
  int64_t all_ ABSL_GUARDED_BY(mutex_) = 0;    // Replicas of all workers.
  std::shared_ptr<DistributedRun> distributed_run_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> here_ ABSL_GUARDED_BY(mutex_);      // By replica of this process: whether its program runs.
  std::vector<int64_t> waits_ ABSL_GUARDED_BY(mutex_);  // By replica: how many of its arrivals wait.
  std::optional<absl::Status> aborted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<PendingCollective>> open_ ABSL_GUARDED_BY(mutex_);
  int64_t arrivals_ ABSL_GUARDED_BY(mutex_) = 0;

  // What the watchdog saw last.
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t seen_arrivals_ ABSL_GUARDED_BY(mutex_) = 0;
  std::clock_t seen_clock_ ABSL_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point seen_at_ ABSL_GUARDED_BY(mutex_);
  int idle_looks_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A call site of a program. The k-th use by a replica meets the k-th uses by its group. A replica's uses depend on each
// other, so a group has at most one pending collective. Thread-safe; lives in a shared_ptr.
class CallSite : public std::enable_shared_from_this<CallSite> {
 public:
  // `what` describes the collective for other workers; empty where no data is exchanged.
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

  // A replica arrives with its contribution. The buffers must stay until the status is returned or, if none is,
  // `callback` is called. A single replica needs no run.
  std::optional<absl::Status> Arrive(int64_t replica, int64_t replicas, const Collective& collective,
                                     Contribution contribution, Callback callback);

  // Fails all waits: the program is gone.
  void Close();

 private:
  friend class ReplicaGroup;
  using PendingCollective = ReplicaGroup::PendingCollective;

  absl::Status PerformAlone(const Collective& collective, Contribution contribution) const;
  std::string Called() const;
  absl::Status Here(const absl::Status& status) const;
  absl::Status Interrupted() const;

  // Why a replica may not arrive here, or not in its group's pending collective (which may be null).
  absl::Status Refusal(int64_t replica, int64_t replicas, const Collective& collective)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(replica_group_->mutex_);
  absl::Status Refusal(const Group& group, const Share& share, const PendingCollective* pending,
                       const Collective& collective, const Contribution& contribution)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(replica_group_->mutex_);

  std::shared_ptr<PendingCollective> Open(const Group& group, const Share& share)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(replica_group_->mutex_);
  void Cross(const std::shared_ptr<DistributedRun>& distributed_run, const std::string& key,
             const Collective& collective, PendingCollective& pending, int64_t local);

  // Why a group can never meet again after a replica has left. The first message is kept: later more replicas may have
  // left because of the failure.
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
  std::optional<Collective> collective_ ABSL_GUARDED_BY(replica_group_->mutex_);  // Of the first arrival.
  std::optional<absl::Status> failure_ ABSL_GUARDED_BY(replica_group_->mutex_);
  std::vector<std::shared_ptr<PendingCollective>> pending_
      ABSL_GUARDED_BY(replica_group_->mutex_);  // The open one of each group, or null.
  std::map<int64_t, absl::Status> lost_ ABSL_GUARDED_BY(replica_group_->mutex_);  // By group.
  std::map<int64_t, int64_t> uses_ ABSL_GUARDED_BY(replica_group_->mutex_);       // By group: how many spanned workers.
  int64_t ordinal_ ABSL_GUARDED_BY(replica_group_->mutex_) = 0;  // Among the sites of a distributed run.
};

}  // namespace tensorflow_ipu::core
