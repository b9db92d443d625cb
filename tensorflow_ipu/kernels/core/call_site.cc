// What a replica may bring to a call site, and what becomes of it: the half of the rendezvous that programs call.
#include <algorithm>

#include "tensorflow_ipu/kernels/core/meeting.h"
#include "tensorflow_ipu/kernels/core/metrics.h"
#include "tensorflow_ipu/kernels/core/rendezvous.h"
#include "tensorflow_ipu/kernels/core/waiting.h"
#include "tensorflow_ipu/kernels/core/work.h"

namespace tensorflow_ipu::core {
namespace {

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
