#include "tensorflow_ipu/kernels/core/rendezvous.h"

#include <algorithm>

#include "tensorflow_ipu/kernels/core/activity.h"
#include "tensorflow_ipu/kernels/core/metrics.h"
#include "tensorflow_ipu/kernels/core/waiting.h"
#include "tensorflow_ipu/kernels/core/work.h"

namespace tensorflow_ipu::core {

// The replicas of one group at one use of a site, as far as they are of this process.
struct Domain::Meeting {
  std::shared_ptr<CallSite> site;
  Group group;  // Of any of its replicas.
  Share share;
  std::optional<std::size_t> at;  // Where it is among the open ones; nothing once it is closed.
  int64_t arrived = 0;
  // By place, which is the rank among the replicas of this process; a null `deliver` has not arrived.
  std::vector<Contribution> contributions;
  std::vector<Deliver> delivers;
  std::vector<Samples::Clock::time_point> since;  // When those arrived who wait, in the order in which they came.
  std::optional<Deadlines::Ticket> deadline;

  int64_t places() const { return share.count; }
  int64_t Replica(int64_t place) const { return group.Replica(share.first + place); }
  bool HasArrived(int64_t place) const { return delivers[place] != nullptr; }

  // The replicas of the group that have arrived, or those that have not, in words: "replicas 1, 3".
  std::string Replicas(bool arrived) const;
};

namespace {

// The process computes as long as it uses this part of a processor's time.
constexpr double kBusy = 0.05;

std::string Listed(const std::vector<int64_t>& replicas) {
  std::string words = replicas.size() == 1 ? "replica " : "replicas ";
  for (std::size_t i = 0; i < replicas.size(); ++i) words += (i == 0 ? "" : ", ") + std::to_string(replicas[i]);
  return words;
}

std::string Described(const Contribution& contribution) {
  std::string words;
  for (const Operand& operand : contribution) {
    words += (words.empty() ? "" : ", ") + std::to_string(operand.count) + " x " + NameOf(operand.type);
  }
  return words;
}

std::size_t BytesOf(const Contribution& contribution) {
  std::size_t bytes = 0;
  for (const Operand& operand : contribution) bytes += static_cast<std::size_t>(operand.count) * SizeOf(operand.type);
  return bytes;
}

void NoteCollective(std::size_t bytes) {
  Count(&Metrics::Global().collectives);
  Count(&Metrics::Global().collective_bytes, static_cast<int64_t>(bytes));
}

}  // namespace

std::string Domain::Meeting::Replicas(bool arrived_ones) const {
  std::vector<int64_t> replicas;
  for (int64_t place = 0; place < places(); ++place) {
    if (HasArrived(place) == arrived_ones) replicas.push_back(Replica(place));
  }
  return Listed(replicas);
}

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

std::optional<Outcome> CallSite::Arrive(int64_t replica, int64_t replicas, const Collective& collective,
                                        Contribution contribution, Deliver deliver) {
  if (replicas == 1) return PerformAlone(collective, std::move(contribution));
  std::shared_ptr<Meeting> complete;
  std::shared_ptr<JointRun> joint;
  int64_t place = 0;
  int64_t local = 0;
  int64_t ordinal = 0;
  int64_t use = 0;
  {
    const Lock lock(domain_->mutex_);
    Outcome refusal = Refusal(replica, replicas, collective);
    if (!refusal.ok()) return refusal;
    const Group group = Group::Of(collective.grouping, replica, replicas);
    std::shared_ptr<Meeting>& meeting = meetings_[group.number];
    const Share share = meeting == nullptr ? domain_->ShareOf(group) : meeting->share;
    refusal = Refusal(group, share, meeting.get(), collective, contribution);
    if (!refusal.ok()) return refusal;
    if (meeting == nullptr) meeting = Open(group, share);
    place = group.rank - meeting->share.first;
    meeting->contributions[place] = std::move(contribution);
    meeting->delivers[place] = std::move(deliver);
    ++domain_->waits_[replica - domain_->first_];
    ++domain_->arrivals_;
    if (++meeting->arrived < meeting->places()) {
      meeting->since.push_back(Samples::Clock::now());
      return std::nullopt;
    }
    complete = meeting;
    domain_->Close(*complete);
    if (complete->places() < group.size) {
      joint = domain_->joint_;
      local = domain_->Local();
      ordinal = ordinal_;
      use = uses_[group.number]++;
    }
  }
  // From here on the meeting is this thread's: neither Leave nor Abort may touch buffers that are being written.
  Metrics::Global().collective_waits.AddAll(Samples::Clock::now(), complete->since);
  NoteCollective(BytesOf(complete->contributions[place]) * complete->contributions.size());
  if (complete->places() < complete->group.size) {
    const std::string key =
        std::to_string(ordinal) + ":" + std::to_string(complete->group.number) + ":" + std::to_string(use);
    Cross(joint, key, collective, *complete, local);
    return std::nullopt;
  }
  const auto work =
      std::make_shared<Work>(collective, std::move(complete->contributions), std::move(complete->delivers), run_time_);
  if (!Work::Perform(work, place)) return std::nullopt;
  return Outcome::Ok();
}

// What the replicas of this process brought meets what those of other workers bring. All have their answers from there.
void CallSite::Cross(const std::shared_ptr<JointRun>& joint, const std::string& key, const Collective& collective,
                     Meeting& meeting, int64_t local) {
  const auto delivers = std::make_shared<std::vector<Deliver>>(std::move(meeting.delivers));
  auto answer = [delivers, run_time = run_time_](Outcome outcome) {
    if (outcome.ok()) return AnswerFromTask(std::move(*delivers), run_time);
    AnswerLater(std::move(*delivers), outcome);
  };
  if (joint == nullptr) {
    return answer(Outcome::FailedPrecondition("The replicas of several workers were to meet in " + Called() +
                                              ", in a run that this worker has by itself."));
  }
  std::vector<Share> shares = SharesOf(meeting.group, local);
  const std::size_t own =
      static_cast<std::size_t>(std::find(shares.begin(), shares.end(), meeting.share) - shares.begin());
  joint->Cross(Called(), key, Parcels(collective, std::move(meeting.contributions), std::move(shares), own),
               std::move(answer));
}

void CallSite::Close() {
  const Lock lock(domain_->mutex_);
  Fail(Outcome::Cancelled("The program of " + Called() + " was deleted while it ran."));
}

Outcome CallSite::PerformAlone(const Collective& collective, Contribution contribution) const {
  if (interrupted.load(std::memory_order_relaxed)) return Interrupted();
  for (Outcome outcome : {collective.Check(1), CheckOperands(collective, 1, contribution)}) {
    if (!outcome.ok()) return {outcome.code, "In " + Called() + ", " + outcome.message};
  }
  NoteCollective(BytesOf(contribution));
  Exchange(collective, {std::move(contribution)}).DoSome();
  return Outcome::Ok();
}

Outcome CallSite::Refusal(int64_t replica, int64_t replicas, const Collective& collective) {
  if (interrupted.load(std::memory_order_relaxed)) return Interrupted();
  if (domain_->aborted_.has_value()) return *domain_->aborted_;
  const int64_t first = domain_->first_;
  if (domain_->all_ != replicas || replica < first || replica >= first + domain_->Local()) {
    return Outcome::FailedPrecondition("Replica " + std::to_string(replica) + " of " + std::to_string(replicas) +
                                       " came to " + Called() + ", and no such run is under way on `" +
                                       domain_->device_ + "`. Run the program with `IPUStrategy.run`.");
  }
  if (run_ != domain_->run_) {
    run_ = domain_->run_;
    collective_.reset();
    failure_.reset();
    meetings_.clear();
    lost_.clear();
    uses_.clear();
  }
  if (failure_.has_value()) return *failure_;
  if (!collective_.has_value()) {
    Outcome outcome = collective.Check(replicas);
    if (!outcome.ok()) return Fail({outcome.code, "In " + Called() + ", " + outcome.message});
    collective_ = collective;
    meetings_.resize(replicas);
  }
  if (!(*collective_ == collective)) {
    return Fail(Outcome::InvalidArgument("The replicas do not agree on what to do in " + Called() + ": replica " +
                                         std::to_string(replica) +
                                         " brings another operation or group size than those before. Run the same "
                                         "program on all of them."));
  }
  return Outcome::Ok();
}

Outcome CallSite::Refusal(const Group& group, const Share& share, const Meeting* meeting, const Collective& collective,
                          const Contribution& contribution) {
  Outcome outcome = CheckOperands(collective, group.size, contribution);
  if (!outcome.ok()) return Fail({outcome.code, "In " + Called() + ", " + outcome.message});
  const int64_t replica = group.Replica(group.rank);
  for (int64_t place = 0; place < share.count; ++place) {
    const int64_t other = group.Replica(share.first + place);
    if (meeting != nullptr && meeting->HasArrived(place)) {
      if (other == replica) {
        return Fail({Code::kInternal, "Replica " + std::to_string(replica) + " came twice to " + Called() + "."});
      }
      if (!Match(meeting->contributions[place], contribution)) {
        return Fail(Outcome::InvalidArgument(
            "The replicas do not agree on the operands of " + Called() + ": replica " + std::to_string(other) +
            " brings " + Described(meeting->contributions[place]) + ", and replica " + std::to_string(replica) + " " +
            Described(contribution) + ". Run the same program on all of them."));
      }
    } else if (!domain_->IsHere(other)) {
      return NeverComplete(group, Listed({replica}));
    }
  }
  return Outcome::Ok();
}

Outcome CallSite::Fail(Outcome why) {
  failure_ = std::move(why);
  for (std::size_t group = 0; group < meetings_.size(); ++group) {
    if (const std::shared_ptr<Meeting> meeting = meetings_[group]) domain_->Fail(meeting, *failure_);
  }
  return *failure_;
}

std::shared_ptr<CallSite::Meeting> CallSite::Open(const Group& group, const Share& share) {
  auto meeting = std::make_shared<Meeting>();
  meeting->site = shared_from_this();
  meeting->group = group;
  meeting->share = share;
  meeting->contributions.resize(meeting->places());
  meeting->delivers.resize(meeting->places());
  meeting->since.reserve(meeting->places());
  const int64_t limit = wait_limit_ns;
  if (limit > 0) {
    meeting->deadline = Deadlines::Global().Add(
        Deadlines::Clock::now() + std::chrono::nanoseconds(limit),
        [domain = domain_, weak = std::weak_ptr<Meeting>(meeting), limit] { domain->GiveUp(weak, limit); });
  }
  meeting->at = domain_->open_.size();
  domain_->open_.push_back(meeting);
  return meeting;
}

std::string CallSite::Called() const { return "the collective `" + name_ + "`"; }

Outcome CallSite::Interrupted() const { return Outcome::Cancelled("The run was interrupted in " + Called() + "."); }

Outcome CallSite::NeverComplete(const Group& group, const std::string& arrived) {
  std::vector<int64_t> gone;
  const Share share = domain_->ShareOf(group);
  for (int64_t rank = share.first; rank < share.first + share.count; ++rank) {
    if (!domain_->IsHere(group.Replica(rank))) gone.push_back(group.Replica(rank));
  }
  Outcome why = Outcome::FailedPrecondition(
      "In a run of replicas, " + Called() + " was reached by " + arrived + ", but never will be by " + Listed(gone) +
      ", whose program has ended. All replicas of a group must come to it equally often: keep it out of branches and "
      "loops that differ between them.");
  return lost_.emplace(group.number, std::move(why)).first->second;
}

}  // namespace tensorflow_ipu::core
