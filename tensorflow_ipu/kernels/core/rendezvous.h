// Where the replicas of a run meet in collectives: nobody blocks, and everyone who waits gets an answer.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_RENDEZVOUS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_RENDEZVOUS_H_

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

#include "tensorflow_ipu/kernels/core/answers.h"
#include "tensorflow_ipu/kernels/core/deadlines.h"
#include "tensorflow_ipu/kernels/core/distributed_run.h"
#include "tensorflow_ipu/kernels/core/exchange.h"
#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/outcome.h"
#include "tensorflow_ipu/kernels/core/running_median.h"
#include "tensorflow_ipu/kernels/core/shares.h"

namespace tensorflow_ipu::core {

class CallSite;

// The replicas of one device, and the run that they are in.
//
// Why no run deadlocks. Arrive never blocks a thread, and what it may run for other replicas (see answers.h) returns
// where their programs wait again. Each wait is ended by one of these: the last arrival of the group; the Leave of a
// replica that is waited for, which the runner calls for every replica whose program ends, however it ends; Abort; the
// limit for waits. What remains is a cycle of replicas that wait for each other.
//
// Replicas that take the same branches make no cycle: they run one executable, whose data dependencies put its
// collectives into one partial order on all of them. The first collective in that order which some replica has still to
// pass depends on nothing that is outstanding, so all replicas arrive there. Replicas that take different branches can
// wait at different call sites. A watchdog finds these: the run fails once all of its replicas wait, none arrives, none
// waits for a feed, and no thread of the process computes or is runnable.
//
// Workers. Where processes run a program together, replicas are numbered over all of them, and each process has those
// of one replica group. In a group of several workers' replicas, those of one process meet first, as above, and then
// one cross-host collective exchanges what they have with the others (see distributed_run.h). They do not wait in the
// replica group meanwhile: the distributed run has a limit of its own, and ends all of its collectives.
//
// Thread-safe; lives in a shared_ptr.
class ReplicaGroup : public std::enable_shared_from_this<ReplicaGroup> {
 public:
  // `device` is for messages. `others_wait` says whether a program waits for something else, such as data. Replicas
  // that wait for each other are found after two to three times `watch`.
  explicit ReplicaGroup(std::string device, std::function<bool()> others_wait = nullptr,
                        std::chrono::nanoseconds watch = std::chrono::milliseconds(250));

  ReplicaGroup(const ReplicaGroup&) = delete;
  ReplicaGroup& operator=(const ReplicaGroup&) = delete;

  // Starts a run of so many replicas. What still waits in a run before is failed, and all of it forgotten.
  //
  // With `workers` above 1, this process has the replicas from worker * replicas on. `distributed_run` is null for a
  // program that has no collectives of several workers' replicas; else `sites` are the call sites of those, in the
  // order of the trace.
  void Begin(int64_t replicas, int64_t worker = 0, int64_t workers = 1,
             std::shared_ptr<DistributedRun> distributed_run = nullptr,
             const std::vector<std::shared_ptr<CallSite>>& sites = {}) IPU_EXCLUDES(mutex_);

  // The program of a replica of this process has ended: it arrives nowhere any more. `replica` counts all workers'.
  void Leave(int64_t replica) IPU_EXCLUDES(mutex_);

  // Fails what waits, and what arrives later in this run. Only the first of several counts.
  void Abort(Outcome why) IPU_EXCLUDES(mutex_);

  // Arrivals that wait.
  int64_t waiting() const IPU_EXCLUDES(mutex_);

 private:
  friend class CallSite;
  struct PendingCollective;

  void Close(PendingCollective& pending) IPU_REQUIRES(mutex_);
  void Fail(const std::shared_ptr<PendingCollective>& pending, const Outcome& why) IPU_REQUIRES(mutex_);
  void FailAll(const Outcome& why) IPU_REQUIRES(mutex_);
  bool AllWait() const IPU_REQUIRES(mutex_);
  int64_t Local() const IPU_REQUIRES(mutex_) { return static_cast<int64_t>(here_.size()); }
  bool IsHere(int64_t replica) const IPU_REQUIRES(mutex_) { return here_[replica - first_]; }
  Share ShareOf(const Group& group) const IPU_REQUIRES(mutex_);
  void WatchLater() IPU_REQUIRES(mutex_);

  void GiveUp(const std::weak_ptr<PendingCollective>& weak, int64_t limit) IPU_EXCLUDES(mutex_);
  void Watch() IPU_EXCLUDES(mutex_);

  const std::string device_;
  const std::function<bool()> others_wait_;
  const std::chrono::nanoseconds watch_;

  mutable Mutex mutex_;                       // Guards what pending collectives hold too.
  int64_t run_ IPU_GUARDED_BY(mutex_) = 0;    // Counts the runs.
  int64_t first_ IPU_GUARDED_BY(mutex_) = 0;  // The first replica of this process.
  int64_t all_ IPU_GUARDED_BY(mutex_) = 0;    // Replicas of all workers.
  std::shared_ptr<DistributedRun> distributed_run_ IPU_GUARDED_BY(mutex_);
  std::vector<bool> here_ IPU_GUARDED_BY(mutex_);      // A replica of this process: whether its program runs.
  std::vector<int64_t> waits_ IPU_GUARDED_BY(mutex_);  // Likewise: how many of its arrivals wait.
  std::optional<Outcome> aborted_ IPU_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<PendingCollective>> open_ IPU_GUARDED_BY(mutex_);  // In no order: each knows where it is.
  int64_t arrivals_ IPU_GUARDED_BY(mutex_) = 0;

  // What the watchdog saw when it looked last.
  bool watching_ IPU_GUARDED_BY(mutex_) = false;
  int64_t seen_arrivals_ IPU_GUARDED_BY(mutex_) = 0;
  std::clock_t seen_clock_ IPU_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point seen_at_ IPU_GUARDED_BY(mutex_);
  int idle_looks_ IPU_GUARDED_BY(mutex_) = 0;
};

// A call site of a program: what a replica's program calls there for the k-th time in a run meets what those of its
// group call there for the k-th time. A replica's uses of one site come one after the other (each needs the value that
// the one before returned), so a group has one pending collective at most.
//
// Thread-safe; lives in a shared_ptr.
class CallSite : public std::enable_shared_from_this<CallSite> {
 public:
  // `what` says in words what is done here, for other workers to compare; nothing where no data is exchanged.
  // `grouping` is that of all uses.
  CallSite(std::string name, std::shared_ptr<ReplicaGroup> replica_group, std::string what = "",
           const Grouping& grouping = {})
      : name_(std::move(name)), replica_group_(std::move(replica_group)), what_(std::move(what)), grouping_(grouping) {}

  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;

  const std::string& name() const { return name_; }
  const std::string& what() const { return what_; }

  // Whether replicas of several workers meet here.
  bool SpansWorkers(int64_t local, int64_t workers) const {
    return !what_.empty() && core::SpansWorkers(grouping_, local, workers);
  }

  // One of `replicas` arrives, with its part of the collective. The buffers must stay until it has its answer: the
  // value returned, or where there is none, what `deliver` gets, perhaps before this returns.
  //
  // A single replica meets nobody, and needs no run.
  std::optional<Outcome> Arrive(int64_t replica, int64_t replicas, const Collective& collective,
                                Contribution contribution, Deliver deliver);

  // Fails what waits here: the program that has the site is gone.
  void Close();

 private:
  friend class ReplicaGroup;
  using PendingCollective = ReplicaGroup::PendingCollective;

  Outcome PerformAlone(const Collective& collective, Contribution contribution) const;
  std::string Called() const;
  Outcome Interrupted() const;

  // Why such a replica may not come here at all, or not to this pending collective of its group: the open one, or null.
  Outcome Refusal(int64_t replica, int64_t replicas, const Collective& collective) IPU_REQUIRES(replica_group_->mutex_);
  Outcome Refusal(const Group& group, const Share& share, const PendingCollective* pending,
                  const Collective& collective, const Contribution& contribution) IPU_REQUIRES(replica_group_->mutex_);

  std::shared_ptr<PendingCollective> Open(const Group& group, const Share& share) IPU_REQUIRES(replica_group_->mutex_);
  void Cross(const std::shared_ptr<DistributedRun>& distributed_run, const std::string& key,
             const Collective& collective, PendingCollective& pending, int64_t local);

  // Why pending collectives of a group that a replica has left cannot be. The first words hold for all that come later:
  // by then more replicas may have left, on account of the failure.
  Outcome NeverComplete(const Group& group, const std::string& arrived) IPU_REQUIRES(replica_group_->mutex_);

  // Has what waits here fail, and what comes later in this run.
  Outcome Fail(Outcome why) IPU_REQUIRES(replica_group_->mutex_);

  const std::string name_;
  const std::shared_ptr<ReplicaGroup> replica_group_;
  const std::string what_;
  const Grouping grouping_;
  const std::shared_ptr<RunningMedian> run_time_ = std::make_shared<RunningMedian>();

  // Void once the replica group has another run.
  int64_t run_ IPU_GUARDED_BY(replica_group_->mutex_) = 0;
  std::optional<Collective> collective_ IPU_GUARDED_BY(replica_group_->mutex_);  // Of the first arrival.
  std::optional<Outcome> failure_ IPU_GUARDED_BY(replica_group_->mutex_);        // Why all later arrivals fail.
  std::vector<std::shared_ptr<PendingCollective>> pending_
      IPU_GUARDED_BY(replica_group_->mutex_);                               // A group: its open one, or null.
  std::map<int64_t, Outcome> lost_ IPU_GUARDED_BY(replica_group_->mutex_);  // A group: why it meets no more.
  std::map<int64_t, int64_t> uses_ IPU_GUARDED_BY(replica_group_->mutex_);  // A group: how often it crossed.
  int64_t ordinal_ IPU_GUARDED_BY(replica_group_->mutex_) = 0;              // Among the sites of a distributed run.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_RENDEZVOUS_H_
