#include "tensorflow_ipu/kernels/collectives/rendezvous.h"

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/support/metrics.h"
#include "tensorflow_ipu/kernels/support/process.h"
#include "tensorflow_ipu/kernels/support/tuning.h"
#include "tensorflow_ipu/kernels/support/waiting.h"

namespace tensorflow_ipu::core {

namespace {

// The process is busy if it uses more than this fraction of a processor's time.
constexpr double kBusy = 0.05;

std::string Listed(const std::vector<int64_t>& replicas) {
  std::string message = replicas.size() == 1 ? "replica " : "replicas ";
  for (std::size_t i = 0; i < replicas.size(); ++i) message += (i == 0 ? "" : ", ") + std::to_string(replicas[i]);
  return message;
}

}  // namespace

// The arrivals of a group's replicas that belong to this process. Guarded by the replica group's lock while it is open.
struct ReplicaGroup::PendingCollective {
  std::shared_ptr<CallSite> site;
  Group group;
  Share share;
  std::optional<std::size_t> at;  // Its index in open_; empty once it is closed.
  int64_t arrived = 0;
  // By place, which is the rank among the replicas of this process. A replica whose callback is null has not arrived.
  std::vector<Contribution> contributions;
  std::vector<Callback> callbacks;
  std::vector<Samples::Clock::time_point> since;  // The arrival times of the replicas that wait.
  std::optional<Deadlines::Ticket> deadline;

  int64_t places() const { return share.count; }
  int64_t Replica(int64_t place) const { return group.Replica(share.first + place); }
  bool HasArrived(int64_t place) const { return callbacks[place] != nullptr; }

  std::string Replicas(bool arrived_ones) const {
    std::vector<int64_t> replicas;
    for (int64_t place = 0; place < places(); ++place) {
      if (HasArrived(place) == arrived_ones) replicas.push_back(Replica(place));
    }
    return Listed(replicas);
  }
};

ReplicaGroup::ReplicaGroup(std::string device, std::function<bool()> others_wait, std::chrono::nanoseconds watch)
    : device_(std::move(device)), others_wait_(std::move(others_wait)), watch_(watch) {}

void ReplicaGroup::Begin(int64_t replicas, int64_t worker, int64_t workers,
                         std::shared_ptr<DistributedRun> distributed_run,
                         const std::vector<std::shared_ptr<CallSite>>& sites) {
  const absl::MutexLock lock(&mutex_);
  FailAll(absl::CancelledError("Another run began on `" + device_ + "`."));
  ++run_;
  first_ = worker * replicas;
  all_ = workers * replicas;
  distributed_run_ = std::move(distributed_run);
  for (std::size_t i = 0; i < sites.size(); ++i) {
    sites[i]->replica_group_->mutex_.AssertHeld();  // It is the same lock.
    sites[i]->ordinal_ = static_cast<int64_t>(i);
  }
  here_.assign(replicas, true);
  waits_.assign(replicas, 0);
  aborted_.reset();
  idle_looks_ = 0;
  if (watching_ || replicas < 2) return;
  watching_ = true;
  seen_at_ = std::chrono::steady_clock::now();
  seen_clock_ = std::clock();
  WatchLater();
}

void ReplicaGroup::Leave(int64_t replica) {
  const absl::MutexLock lock(&mutex_);
  if (replica < first_ || replica >= first_ + Local() || !IsHere(replica)) return;
  here_[replica - first_] = false;
  std::vector<std::shared_ptr<PendingCollective>> lost;
  for (const auto& pending : open_) {
    for (int64_t place = 0; place < pending->places(); ++place) {
      if (pending->Replica(place) == replica && !pending->HasArrived(place)) lost.push_back(pending);
    }
  }
  for (const auto& pending : lost) {
    pending->site->replica_group_->mutex_.AssertHeld();
    Fail(pending, pending->site->NeverComplete(pending->group, pending->Replicas(true)));
  }
}

void ReplicaGroup::Abort(absl::Status why) {
  std::shared_ptr<DistributedRun> distributed_run;
  {
    const absl::MutexLock lock(&mutex_);
    if (aborted_.has_value()) return;
    aborted_ = why;
    FailAll(*aborted_);
    distributed_run = distributed_run_;
  }
  if (distributed_run != nullptr) distributed_run->Abort(std::move(why));
}

int64_t ReplicaGroup::waiting() const {
  const absl::MutexLock lock(&mutex_);
  int64_t count = 0;
  for (const int64_t of_replica : waits_) count += of_replica;
  return count;
}

void ReplicaGroup::Close(PendingCollective& pending) {
  if (pending.deadline.has_value()) Deadlines::Global().Remove(*pending.deadline);
  for (int64_t place = 0; place < pending.places(); ++place) {
    if (pending.HasArrived(place)) --waits_[pending.Replica(place) - first_];
  }
  pending.site->replica_group_->mutex_.AssertHeld();
  pending.site->pending_[pending.group.number] = nullptr;
  std::swap(open_[*pending.at], open_.back());
  open_[*pending.at]->at = pending.at;
  pending.at.reset();
  open_.pop_back();
}

void ReplicaGroup::Fail(const std::shared_ptr<PendingCollective>& pending, const absl::Status& why) {
  Close(*pending);
  RunCallbacksLater(std::move(pending->callbacks), why);
}

void ReplicaGroup::FailAll(const absl::Status& why) {
  while (!open_.empty()) Fail(std::shared_ptr<PendingCollective>(open_.back()), why);
}

Share ReplicaGroup::ShareOf(const Group& group) const {
  if (Local() == all_) return {0, 0, group.size};
  return core::ShareOf(group, Local(), group.rank);
}

bool ReplicaGroup::AllWait() const {
  bool some = false;
  for (std::size_t replica = 0; replica < here_.size(); ++replica) {
    if (here_[replica] && waits_[replica] == 0) return false;
    some = some || here_[replica];
  }
  return some;
}

void ReplicaGroup::GiveUp(const std::weak_ptr<PendingCollective>& weak, int64_t limit) {
  const absl::MutexLock lock(&mutex_);
  const std::shared_ptr<PendingCollective> pending = weak.lock();
  if (pending == nullptr || !pending->at.has_value()) return;
  pending->deadline.reset();
  Fail(pending,
       absl::DeadlineExceededError(pending->Replicas(true) + " waited " + std::to_string(limit / 1000000) + " ms for " +
                                   pending->Replicas(false) + " in " + pending->site->Called() +
                                   ", the limit for waits. All replicas of a group must take the same "
                                   "branches. If one is only slow, raise the limit with `feeds.set_wait_limit`."));
}

void ReplicaGroup::WatchLater() {
  Deadlines::Global().Add(seen_at_ + watch_, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Watch();
  });
}

void ReplicaGroup::Watch() {
  const bool others_wait = others_wait_ != nullptr && others_wait_();
  const absl::MutexLock lock(&mutex_);
  if (std::find(here_.begin(), here_.end(), true) == here_.end()) {
    watching_ = false;
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  const std::clock_t clock = std::clock();
  const double computed = static_cast<double>(clock - seen_clock_) / CLOCKS_PER_SEC;
  const bool busy = computed > kBusy * std::chrono::duration<double>(now - seen_at_).count();
  const bool idle = AllWait() && arrivals_ == seen_arrivals_ && !busy && !others_wait && !OthersCompute();
  idle_looks_ = idle ? idle_looks_ + 1 : 0;
  seen_arrivals_ = arrivals_;
  seen_clock_ = clock;
  seen_at_ = now;
  // Requires two idle checks in a row: a process that was stopped by a debugger seems idle when it continues.
  if (idle_looks_ == 2) {
    std::string message = "The replicas wait for each other in a deadlock:";
    for (const auto& pending : open_) {
      message +=
          " " + pending->Replicas(true) + " for " + pending->Replicas(false) + " in " + pending->site->Called() + ";";
    }
    message.back() = '.';
    FailAll(absl::FailedPreconditionError(message + " All replicas of a group must take the same branches."));
  }
  WatchLater();
}

namespace {

// The work of a collective whose replicas all belong to this process. Contributions match and are sorted by rank.
struct Work {
  Work(const Collective& collective, std::vector<Contribution> contributions, std::vector<Callback> callbacks_by_rank,
       std::shared_ptr<RunningMedian> time)
      : exchange(collective, std::move(contributions)),
        callbacks(std::move(callbacks_by_rank)),
        run_time(std::move(time)) {}

  LocalExchange exchange;
  std::vector<Callback> callbacks;  // Called by the thread that finishes the last piece.
  const std::shared_ptr<RunningMedian> run_time;
};

// Returns true if the collective is complete. Otherwise other threads complete it, and call all callbacks including
// that of the caller. The last replica to arrive does the work, because its data is in its cache. Idle threads help if
// the data is large.
bool Perform(const std::shared_ptr<Work>& work, int64_t own_rank) {
  if (work->exchange.bytes() >= kSharedBytes) {
    const int64_t helpers = std::min(Cores(), work->exchange.pieces()) - 1;
    for (int64_t i = 0; i < helpers; ++i) {
      Executor::Global().Run([work](const absl::Status& started) {
        if (!started.ok()) return;  // Other threads do its pieces.
        Executor::SpinAfterTask(TaskSpin(*work->run_time));
        if (work->exchange.DoSome()) RunCallbacksFromTask(std::move(work->callbacks), work->run_time);
      });
    }
  }
  if (!work->exchange.DoSome()) return false;
  work->callbacks[own_rank] = nullptr;
  RunCallbacks(std::move(work->callbacks), work->run_time);
  return true;
}

std::string Described(const Contribution& contribution) {
  std::string message;
  for (const Operand& operand : contribution) {
    message += (message.empty() ? "" : ", ") + std::to_string(operand.count) + " x " + NameOf(operand.type);
  }
  return message;
}

const Counter collectives("Collectives"), collective_bytes("CollectiveBytes");

void NoteCollective(std::size_t bytes) {
  collectives.Add();
  collective_bytes.Add(static_cast<int64_t>(bytes));
}

}  // namespace

std::optional<absl::Status> CallSite::Arrive(int64_t replica, int64_t replicas, const Collective& collective,
                                             Contribution contribution, Callback callback) {
  if (replicas == 1) return PerformAlone(collective, std::move(contribution));
  std::shared_ptr<PendingCollective> complete;
  std::shared_ptr<DistributedRun> distributed_run;
  int64_t place = 0;
  int64_t local = 0;
  int64_t ordinal = 0;
  int64_t use = 0;
  {
    const absl::MutexLock lock(&replica_group_->mutex_);
    absl::Status refusal = Refusal(replica, replicas, collective);
    if (!refusal.ok()) return refusal;
    const Group group = Group::Of(collective.grouping, replica, replicas);
    std::shared_ptr<PendingCollective>& pending = pending_[group.number];
    const Share share = pending == nullptr ? replica_group_->ShareOf(group) : pending->share;
    refusal = Refusal(group, share, pending.get(), collective, contribution);
    if (!refusal.ok()) return refusal;
    if (pending == nullptr) pending = Open(group, share);
    place = group.rank - pending->share.first;
    pending->contributions[place] = std::move(contribution);
    pending->callbacks[place] = std::move(callback);
    ++replica_group_->waits_[replica - replica_group_->first_];
    ++replica_group_->arrivals_;
    if (++pending->arrived < pending->places()) {
      pending->since.push_back(Samples::Clock::now());
      return std::nullopt;
    }
    complete = pending;
    replica_group_->Close(*complete);
    if (complete->places() < group.size) {
      distributed_run = replica_group_->distributed_run_;
      local = replica_group_->Local();
      ordinal = ordinal_;
      use = uses_[group.number]++;
    }
  }
  // From here on this thread owns the pending collective: neither Leave nor Abort may release buffers that are being
  // written.
  Metrics::Global().collective_waits.AddAll(Samples::Clock::now(), complete->since);
  NoteCollective(BytesOf(complete->contributions[place]) * complete->contributions.size());
  if (complete->places() < complete->group.size) {
    const std::string key =
        std::to_string(ordinal) + ":" + std::to_string(complete->group.number) + ":" + std::to_string(use);
    Cross(distributed_run, key, collective, *complete, local);
    return std::nullopt;
  }
  const auto work =
      std::make_shared<Work>(collective, std::move(complete->contributions), std::move(complete->callbacks), run_time_);
  if (!Perform(work, place)) return std::nullopt;
  return absl::OkStatus();
}

void CallSite::Cross(const std::shared_ptr<DistributedRun>& distributed_run, const std::string& key,
                     const Collective& collective, PendingCollective& pending, int64_t local) {
  const auto callbacks = std::make_shared<std::vector<Callback>>(std::move(pending.callbacks));
  auto done = [callbacks, run_time = run_time_](absl::Status status) {
    if (status.ok()) return RunCallbacksFromTask(std::move(*callbacks), run_time);
    RunCallbacksLater(std::move(*callbacks), status);
  };
  if (distributed_run == nullptr) {
    return done(absl::FailedPreconditionError("Replicas of several workers must take part in " + Called() +
                                              ", but only this worker takes part in the run."));
  }
  std::vector<Share> shares = SharesOf(pending.group, local);
  const std::size_t own =
      static_cast<std::size_t>(std::find(shares.begin(), shares.end(), pending.share) - shares.begin());
  distributed_run->Cross(Called(), key, Exchange(collective, std::move(pending.contributions), std::move(shares), own),
                         std::move(done));
}

void CallSite::Close() {
  const absl::MutexLock lock(&replica_group_->mutex_);
  Fail(absl::CancelledError("The program of " + Called() + " was deleted while it ran.")).IgnoreError();
}

absl::Status CallSite::PerformAlone(const Collective& collective, Contribution contribution) const {
  if (interrupted.load(std::memory_order_relaxed)) return Interrupted();
  for (absl::Status status : {collective.Check(1), CheckOperands(collective, 1, contribution)}) {
    if (!status.ok()) return Here(status);
  }
  NoteCollective(BytesOf(contribution));
  std::vector<Contribution> alone;
  alone.push_back(std::move(contribution));
  LocalExchange(collective, std::move(alone)).DoSome();
  return absl::OkStatus();
}

absl::Status CallSite::Refusal(int64_t replica, int64_t replicas, const Collective& collective) {
  if (interrupted.load(std::memory_order_relaxed)) return Interrupted();
  if (replica_group_->aborted_.has_value()) return *replica_group_->aborted_;
  const int64_t first = replica_group_->first_;
  if (replica_group_->all_ != replicas || replica < first || replica >= first + replica_group_->Local()) {
    return absl::FailedPreconditionError("Replica " + std::to_string(replica) + " of " + std::to_string(replicas) +
                                         " reached " + Called() + ", but no such run is active on `" +
                                         replica_group_->device_ + "`. Run the program with `IPUStrategy.run`.");
  }
  if (run_ != replica_group_->run_) {
    run_ = replica_group_->run_;
    collective_.reset();
    failure_.reset();
    pending_.clear();
    lost_.clear();
    uses_.clear();
  }
  if (failure_.has_value()) return *failure_;
  if (!collective_.has_value()) {
    absl::Status status = collective.Check(replicas);
    if (!status.ok()) return Fail(Here(status));
    collective_ = collective;
    pending_.resize(replicas);
  }
  if (!(*collective_ == collective)) {
    return Fail(absl::InvalidArgumentError("The replicas do not agree on what to do in " + Called() + ": replica " +
                                           std::to_string(replica) +
                                           " brings another operation or group size than those before. Run the same "
                                           "program on all of them."));
  }
  return absl::OkStatus();
}

absl::Status CallSite::Refusal(const Group& group, const Share& share, const PendingCollective* pending,
                               const Collective& collective, const Contribution& contribution) {
  absl::Status status = CheckOperands(collective, group.size, contribution);
  if (!status.ok()) return Fail(Here(status));
  const int64_t replica = group.Replica(group.rank);
  for (int64_t place = 0; place < share.count; ++place) {
    const int64_t other = group.Replica(share.first + place);
    if (pending != nullptr && pending->HasArrived(place)) {
      if (other == replica) {
        return Fail(absl::InternalError("Replica " + std::to_string(replica) + " came twice to " + Called() + "."));
      }
      if (!Match(pending->contributions[place], contribution)) {
        return Fail(absl::InvalidArgumentError(
            "The replicas do not agree on the operands of " + Called() + ": replica " + std::to_string(other) +
            " brings " + Described(pending->contributions[place]) + ", and replica " + std::to_string(replica) + " " +
            Described(contribution) + ". Run the same program on all of them."));
      }
    } else if (!replica_group_->IsHere(other)) {
      return NeverComplete(group, Listed({replica}));
    }
  }
  return absl::OkStatus();
}

absl::Status CallSite::Fail(absl::Status why) {
  failure_ = std::move(why);
  for (std::size_t group = 0; group < pending_.size(); ++group) {
    if (const std::shared_ptr<PendingCollective> pending = pending_[group]) replica_group_->Fail(pending, *failure_);
  }
  return *failure_;
}

std::shared_ptr<CallSite::PendingCollective> CallSite::Open(const Group& group, const Share& share) {
  auto pending = std::make_shared<PendingCollective>();
  pending->site = shared_from_this();
  pending->group = group;
  pending->share = share;
  pending->contributions.resize(pending->places());
  pending->callbacks.resize(pending->places());
  pending->since.reserve(pending->places());
  const int64_t limit = wait_limit_ns;
  if (limit > 0) {
    pending->deadline =
        Deadlines::Global().Add(Deadlines::Clock::now() + std::chrono::nanoseconds(limit),
                                [replica_group = replica_group_, weak = std::weak_ptr<PendingCollective>(pending),
                                 limit] { replica_group->GiveUp(weak, limit); });
  }
  pending->at = replica_group_->open_.size();
  replica_group_->open_.push_back(pending);
  return pending;
}

std::string CallSite::Called() const { return "the collective `" + name_ + "`"; }

absl::Status CallSite::Here(const absl::Status& status) const {
  return {status.code(), absl::StrCat("In ", Called(), ", ", status.message())};
}

absl::Status CallSite::Interrupted() const {
  return absl::CancelledError("The run was interrupted in " + Called() + ".");
}

absl::Status CallSite::NeverComplete(const Group& group, const std::string& arrived) {
  std::vector<int64_t> gone;
  const Share share = replica_group_->ShareOf(group);
  for (int64_t rank = share.first; rank < share.first + share.count; ++rank) {
    if (!replica_group_->IsHere(group.Replica(rank))) gone.push_back(group.Replica(rank));
  }
  absl::Status why = absl::FailedPreconditionError(
      "In a run of replicas, " + Called() + " was reached by " + arrived + ", but never will be by " + Listed(gone) +
      ", whose program has ended. All replicas of a group must come to it equally often: keep it out of branches and "
      "loops that differ between them.");
  return lost_.emplace(group.number, std::move(why)).first->second;
}

}  // namespace tensorflow_ipu::core
