// The replicas of a run, and how their waits end.
#include "tensorflow_ipu/kernels/core/rendezvous.h"

#include <algorithm>

#include "tensorflow_ipu/kernels/core/activity.h"
#include "tensorflow_ipu/kernels/core/pending_collective.h"

namespace tensorflow_ipu::core {
namespace {

// The process is busy if it uses this part of a processor's time.
constexpr double kBusy = 0.05;

}  // namespace

ReplicaGroup::ReplicaGroup(std::string device, std::function<bool()> others_wait, std::chrono::nanoseconds watch)
    : device_(std::move(device)), others_wait_(std::move(others_wait)), watch_(watch) {}

void ReplicaGroup::Begin(int64_t replicas, int64_t worker, int64_t workers,
                         std::shared_ptr<DistributedRun> distributed_run,
                         const std::vector<std::shared_ptr<CallSite>>& sites) {
  const Lock lock(mutex_);
  FailAll(Outcome::Cancelled("Another run began on `" + device_ + "`."));
  ++run_;
  first_ = worker * replicas;
  all_ = workers * replicas;
  distributed_run_ = std::move(distributed_run);
  for (std::size_t i = 0; i < sites.size(); ++i) {
    sites[i]->replica_group_->mutex_.AssertHeld();  // It is this one.
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
  const Lock lock(mutex_);
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

void ReplicaGroup::Abort(Outcome why) {
  std::shared_ptr<DistributedRun> distributed_run;
  {
    const Lock lock(mutex_);
    if (aborted_.has_value()) return;
    aborted_ = why;
    FailAll(*aborted_);
    distributed_run = distributed_run_;
  }
  if (distributed_run != nullptr) distributed_run->Abort(std::move(why));
}

int64_t ReplicaGroup::waiting() const {
  const Lock lock(mutex_);
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

void ReplicaGroup::Fail(const std::shared_ptr<PendingCollective>& pending, const Outcome& why) {
  Close(*pending);
  AnswerLater(std::move(pending->delivers), why);
}

void ReplicaGroup::FailAll(const Outcome& why) {
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
  const Lock lock(mutex_);
  const std::shared_ptr<PendingCollective> pending = weak.lock();
  if (pending == nullptr || !pending->at.has_value()) return;
  pending->deadline.reset();
  Fail(pending, Outcome::DeadlineExceeded(
                    pending->Replicas(true) + " waited " + std::to_string(limit / 1000000) + " ms for " +
                    pending->Replicas(false) + " in " + pending->site->Called() +
                    ", the limit for waits. Let all replicas of a group take the same branches, or raise the limit "
                    "with `feeds.set_wait_limit`."));
}

void ReplicaGroup::WatchLater() {
  Deadlines::Global().Add(seen_at_ + watch_, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Watch();
  });
}

void ReplicaGroup::Watch() {
  const bool others_wait = others_wait_ != nullptr && others_wait_();
  const Lock lock(mutex_);
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
  // Twice in a row: a process that was stopped by a debugger seems idle when it continues.
  if (idle_looks_ == 2) {
    std::string words = "The replicas wait for each other without end:";
    for (const auto& pending : open_) {
      words +=
          " " + pending->Replicas(true) + " for " + pending->Replicas(false) + " in " + pending->site->Called() + ";";
    }
    words.back() = '.';
    FailAll(Outcome::FailedPrecondition(words + " Let all replicas of a group take the same branches."));
  }
  WatchLater();
}

}  // namespace tensorflow_ipu::core
