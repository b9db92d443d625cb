// The replicas of a run, and the ends of what they wait for.
#include "tensorflow_ipu/kernels/core/rendezvous.h"

#include <algorithm>

#include "tensorflow_ipu/kernels/core/activity.h"
#include "tensorflow_ipu/kernels/core/meeting.h"

namespace tensorflow_ipu::core {
namespace {

// The process computes as long as it uses this part of a processor's time.
constexpr double kBusy = 0.05;

}  // namespace

Domain::Domain(std::string device, std::function<bool()> others_wait, std::chrono::nanoseconds watch)
    : device_(std::move(device)), others_wait_(std::move(others_wait)), watch_(watch) {}

void Domain::Begin(int64_t replicas, int64_t worker, int64_t workers, std::shared_ptr<JointRun> joint,
                   const std::vector<std::shared_ptr<CallSite>>& sites) {
  const Lock lock(mutex_);
  FailAll(Outcome::Cancelled("Another run began on `" + device_ + "`."));
  ++run_;
  first_ = worker * replicas;
  all_ = workers * replicas;
  joint_ = std::move(joint);
  for (std::size_t i = 0; i < sites.size(); ++i) {
    sites[i]->domain_->mutex_.AssertHeld();  // It is this one.
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

void Domain::Leave(int64_t replica) {
  const Lock lock(mutex_);
  if (replica < first_ || replica >= first_ + Local() || !IsHere(replica)) return;
  here_[replica - first_] = false;
  std::vector<std::shared_ptr<Meeting>> lost;
  for (const auto& meeting : open_) {
    for (int64_t place = 0; place < meeting->places(); ++place) {
      if (meeting->Replica(place) == replica && !meeting->HasArrived(place)) lost.push_back(meeting);
    }
  }
  for (const auto& meeting : lost) {
    meeting->site->domain_->mutex_.AssertHeld();  // It is this one.
    Fail(meeting, meeting->site->NeverComplete(meeting->group, meeting->Replicas(true)));
  }
}

void Domain::Abort(Outcome why) {
  std::shared_ptr<JointRun> joint;
  {
    const Lock lock(mutex_);
    if (aborted_.has_value()) return;
    aborted_ = why;
    FailAll(*aborted_);
    joint = joint_;
  }
  if (joint != nullptr) joint->Abort(std::move(why));
}

int64_t Domain::waiting() const {
  const Lock lock(mutex_);
  int64_t count = 0;
  for (const int64_t of_replica : waits_) count += of_replica;
  return count;
}

void Domain::Close(Meeting& meeting) {
  if (meeting.deadline.has_value()) Deadlines::Global().Remove(*meeting.deadline);
  for (int64_t place = 0; place < meeting.places(); ++place) {
    if (meeting.HasArrived(place)) --waits_[meeting.Replica(place) - first_];
  }
  meeting.site->domain_->mutex_.AssertHeld();  // It is this one.
  meeting.site->meetings_[meeting.group.number] = nullptr;
  std::swap(open_[*meeting.at], open_.back());
  open_[*meeting.at]->at = meeting.at;
  meeting.at.reset();
  open_.pop_back();
}

void Domain::Fail(const std::shared_ptr<Meeting>& meeting, const Outcome& why) {
  Close(*meeting);
  AnswerLater(std::move(meeting->delivers), why);
}

void Domain::FailAll(const Outcome& why) {
  while (!open_.empty()) Fail(std::shared_ptr<Meeting>(open_.back()), why);
}

// Of this process, with the replica whose group it is.
Share Domain::ShareOf(const Group& group) const {
  if (Local() == all_) return {0, 0, group.size};
  return core::ShareOf(group, Local(), group.rank);
}

bool Domain::AllWait() const {
  bool some = false;
  for (std::size_t replica = 0; replica < here_.size(); ++replica) {
    if (here_[replica] && waits_[replica] == 0) return false;
    some = some || here_[replica];
  }
  return some;
}

void Domain::GiveUp(const std::weak_ptr<Meeting>& weak, int64_t limit) {
  const Lock lock(mutex_);
  const std::shared_ptr<Meeting> meeting = weak.lock();
  if (meeting == nullptr || !meeting->at.has_value()) return;
  meeting->deadline.reset();
  Fail(meeting, Outcome::DeadlineExceeded(
                    meeting->Replicas(true) + " waited " + std::to_string(limit / 1000000) + " ms for " +
                    meeting->Replicas(false) + " in " + meeting->site->Called() +
                    ", the limit for waits. Let all replicas of a group take the same branches, or raise the limit "
                    "with `feeds.set_wait_limit`."));
}

void Domain::WatchLater() {
  Deadlines::Global().Add(seen_at_ + watch_, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Watch();
  });
}

void Domain::Watch() {
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
  // Twice in a row: a process that was stopped, by a debugger say, seems idle when it goes on.
  if (idle_looks_ == 2) {
    std::string words = "The replicas wait for each other without end:";
    for (const auto& meeting : open_) {
      words +=
          " " + meeting->Replicas(true) + " for " + meeting->Replicas(false) + " in " + meeting->site->Called() + ";";
    }
    words.back() = '.';
    FailAll(Outcome::FailedPrecondition(words + " Let all replicas of a group take the same branches."));
  }
  WatchLater();
}

}  // namespace tensorflow_ipu::core
