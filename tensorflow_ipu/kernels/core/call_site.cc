// The half of the rendezvous that programs call.
#include <algorithm>

#include "tensorflow_ipu/kernels/core/metrics.h"
#include "tensorflow_ipu/kernels/core/pending_collective.h"
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
  std::shared_ptr<PendingCollective> complete;
  std::shared_ptr<DistributedRun> distributed_run;
  int64_t place = 0;
  int64_t local = 0;
  int64_t ordinal = 0;
  int64_t use = 0;
  {
    const Lock lock(replica_group_->mutex_);
    Outcome refusal = Refusal(replica, replicas, collective);
    if (!refusal.ok()) return refusal;
    const Group group = Group::Of(collective.grouping, replica, replicas);
    std::shared_ptr<PendingCollective>& pending = pending_[group.number];
    const Share share = pending == nullptr ? replica_group_->ShareOf(group) : pending->share;
    refusal = Refusal(group, share, pending.get(), collective, contribution);
    if (!refusal.ok()) return refusal;
    if (pending == nullptr) pending = Open(group, share);
    place = group.rank - pending->share.first;
    pending->contributions[place] = std::move(contribution);
    pending->delivers[place] = std::move(deliver);
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
  // From here on this thread owns the pending collective: neither Leave nor Abort may touch buffers that are being
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
      std::make_shared<Work>(collective, std::move(complete->contributions), std::move(complete->delivers), run_time_);
  if (!Work::Perform(work, place)) return std::nullopt;
  return Outcome::Ok();
}

void CallSite::Cross(const std::shared_ptr<DistributedRun>& distributed_run, const std::string& key,
                     const Collective& collective, PendingCollective& pending, int64_t local) {
  const auto delivers = std::make_shared<std::vector<Deliver>>(std::move(pending.delivers));
  auto answer = [delivers, run_time = run_time_](Outcome outcome) {
    if (outcome.ok()) return AnswerFromTask(std::move(*delivers), run_time);
    AnswerLater(std::move(*delivers), outcome);
  };
  if (distributed_run == nullptr) {
    return answer(Outcome::FailedPrecondition("The replicas of several workers were to meet in " + Called() +
                                              ", in a run that this worker has by itself."));
  }
  std::vector<Share> shares = SharesOf(pending.group, local);
  const std::size_t own =
      static_cast<std::size_t>(std::find(shares.begin(), shares.end(), pending.share) - shares.begin());
  distributed_run->Cross(Called(), key, Packer(collective, std::move(pending.contributions), std::move(shares), own),
                         std::move(answer));
}

void CallSite::Close() {
  const Lock lock(replica_group_->mutex_);
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
  if (replica_group_->aborted_.has_value()) return *replica_group_->aborted_;
  const int64_t first = replica_group_->first_;
  if (replica_group_->all_ != replicas || replica < first || replica >= first + replica_group_->Local()) {
    return Outcome::FailedPrecondition("Replica " + std::to_string(replica) + " of " + std::to_string(replicas) +
                                       " came to " + Called() + ", and no such run is under way on `" +
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
    Outcome outcome = collective.Check(replicas);
    if (!outcome.ok()) return Fail({outcome.code, "In " + Called() + ", " + outcome.message});
    collective_ = collective;
    pending_.resize(replicas);
  }
  if (!(*collective_ == collective)) {
    return Fail(Outcome::InvalidArgument("The replicas do not agree on what to do in " + Called() + ": replica " +
                                         std::to_string(replica) +
                                         " brings another operation or group size than those before. Run the same "
                                         "program on all of them."));
  }
  return Outcome::Ok();
}

Outcome CallSite::Refusal(const Group& group, const Share& share, const PendingCollective* pending,
                          const Collective& collective, const Contribution& contribution) {
  Outcome outcome = CheckOperands(collective, group.size, contribution);
  if (!outcome.ok()) return Fail({outcome.code, "In " + Called() + ", " + outcome.message});
  const int64_t replica = group.Replica(group.rank);
  for (int64_t place = 0; place < share.count; ++place) {
    const int64_t other = group.Replica(share.first + place);
    if (pending != nullptr && pending->HasArrived(place)) {
      if (other == replica) {
        return Fail({Code::kInternal, "Replica " + std::to_string(replica) + " came twice to " + Called() + "."});
      }
      if (!Match(pending->contributions[place], contribution)) {
        return Fail(Outcome::InvalidArgument(
            "The replicas do not agree on the operands of " + Called() + ": replica " + std::to_string(other) +
            " brings " + Described(pending->contributions[place]) + ", and replica " + std::to_string(replica) + " " +
            Described(contribution) + ". Run the same program on all of them."));
      }
    } else if (!replica_group_->IsHere(other)) {
      return NeverComplete(group, Listed({replica}));
    }
  }
  return Outcome::Ok();
}

Outcome CallSite::Fail(Outcome why) {
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
  pending->delivers.resize(pending->places());
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

Outcome CallSite::Interrupted() const { return Outcome::Cancelled("The run was interrupted in " + Called() + "."); }

Outcome CallSite::NeverComplete(const Group& group, const std::string& arrived) {
  std::vector<int64_t> gone;
  const Share share = replica_group_->ShareOf(group);
  for (int64_t rank = share.first; rank < share.first + share.count; ++rank) {
    if (!replica_group_->IsHere(group.Replica(rank))) gone.push_back(group.Replica(rank));
  }
  Outcome why = Outcome::FailedPrecondition(
      "In a run of replicas, " + Called() + " was reached by " + arrived + ", but never will be by " + Listed(gone) +
      ", whose program has ended. All replicas of a group must come to it equally often: keep it out of branches and "
      "loops that differ between them.");
  return lost_.emplace(group.number, std::move(why)).first->second;
}

}  // namespace tensorflow_ipu::core
