#include "tensorflow_ipu/kernels/collectives/distributed_run.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/support/threads.h"
#include "tensorflow_ipu/kernels/support/tuning.h"

namespace tensorflow_ipu::core {

namespace {

std::string Counted(std::size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

std::string Program::Text() const {
  std::string text = std::to_string(replicas) + "\n" + std::to_string(chunk_bytes) + "\n" + name;
  for (const std::string& collective : collectives) text += "\n" + collective;
  return text;
}

Program Program::OfText(const std::string& text) {
  Program program;
  std::istringstream lines(text);
  std::string line;
  if (std::getline(lines, line)) program.replicas = std::atoll(line.c_str());
  if (std::getline(lines, line)) program.chunk_bytes = std::atoll(line.c_str());
  std::getline(lines, program.name);
  while (std::getline(lines, line)) program.collectives.push_back(line);
  return program;
}

uint64_t Program::Digest() const {
  Program nameless = *this;
  nameless.name.clear();
  return Key(nameless.Text()).digest[0];
}

std::optional<std::string> Difference(const Program& ours, const Program& theirs, const std::string& worker) {
  if (ours.replicas != theirs.replicas) {
    return worker + " has " + Counted(static_cast<std::size_t>(theirs.replicas), "replica") +
           " of the program, and this worker has " + std::to_string(ours.replicas) +
           ". Configure the same number of IPUs on all workers.";
  }
  if (ours.chunk_bytes != theirs.chunk_bytes) {
    return worker + " sends chunks of up to " + std::to_string(theirs.chunk_bytes) + " bytes, and this worker " +
           std::to_string(ours.chunk_bytes) +
           ". Set `optimizations.maximum_cross_replica_sum_buffer_size` to the same value on all workers.";
  }
  const std::size_t common = std::min(ours.collectives.size(), theirs.collectives.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (ours.collectives[i] == theirs.collectives[i]) continue;
    if (ours.IsExchange()) {
      return worker + " exchanges " + theirs.collectives[i] + ", and this worker " + ours.collectives[i] +
             ". All workers must exchange tensors of the same types and shapes, in the same order.";
    }
    return worker + " runs another program: collective " + std::to_string(i + 1) + " of its `" + theirs.name + "` is " +
           theirs.collectives[i] + ", and of `" + ours.name + "` on this worker it is " + ours.collectives[i] +
           ". Run the same program on all workers.";
  }
  if (ours.collectives.size() != theirs.collectives.size()) {
    return worker + " runs another program: its `" + theirs.name + "` has " +
           Counted(theirs.collectives.size(), "collective") + ", and `" + ours.name + "` on this worker has " +
           std::to_string(ours.collectives.size()) + ". Run the same program on all workers.";
  }
  return std::nullopt;
}

std::shared_ptr<Message> MessageOfText(const std::string& text) {
  auto message = std::make_shared<Message>(text.size());
  std::memcpy(message->data(), text.data(), text.size());
  return message;
}

std::string TextOf(const Message& message) {
  return std::string(reinterpret_cast<const char*>(message.data()), message.bytes());
}

namespace {

// The number of latest runs of a sequence that are kept, because a late worker may still query them.
constexpr std::size_t kKeptRuns = 4;

std::string Seconds(std::chrono::nanoseconds time) {
  const int64_t tenths = time / std::chrono::milliseconds(100);
  return std::to_string(tenths / 10) + (tenths % 10 == 0 ? "" : "." + std::to_string(tenths % 10)) + " s";
}

std::string DescribeEnd(const RunState& state, const std::string& worker, const Program& run,
                        const std::string& where) {
  if (run.IsExchange()) return worker + " gave up " + where + ": " + state.message;
  const std::string crossed = Counted(static_cast<std::size_t>(state.crossed), "collective");
  if (static_cast<absl::StatusCode>(state.fate) == absl::StatusCode::kOk) {
    return worker + " ended its run of `" + run.name + "` after " + crossed + ", and this worker waits for it in " +
           where + ". All workers must run the same number of steps and take the same branches.";
  }
  return worker + " failed in its run of `" + run.name + "`, after " + crossed + ": " + state.message;
}

std::string DescribeExchange(const std::string& exchange, const std::string& worker, const std::string& program,
                             const std::string& where, int64_t own) {
  return worker + " did not begin this run of `" + program + "`: it waits for all workers to exchange " + exchange +
         ", while worker " + std::to_string(own) + " waits for it in " + where +
         ". All workers must run the same programs the same number of times.";
}

}  // namespace

DistributedRun::DistributedRun(Workers workers, std::string name, Program program,
                               std::optional<int64_t> host_exchanges)
    : workers_(std::move(workers)),
      name_(std::move(name)),
      program_(std::move(program)),
      host_exchanges_(host_exchanges),
      data_(name_ + ":" + std::to_string(program_.Digest())),
      question_(name_),
      text_question_(name_ + ":text"),
      calls_(workers_.communicator->NewCalls()) {}

DistributedRun::~DistributedRun() { calls_->Cancel(); }

void DistributedRun::Cross(const std::string& name, const std::string& key, Exchange exchange,
                           std::function<void(absl::Status)> done) {
  const auto collective = std::make_shared<CrossHostCollective>(name, data_ + ":" + key, std::move(exchange),
                                                                workers_.communicator, calls_);
  std::optional<absl::Status> failure;
  {
    const absl::MutexLock lock(&mutex_);
    failure = failure_;
    if (!failure.has_value()) {
      open_.insert(collective);
      if (!checking_) CheckLater();
    }
  }
  if (failure.has_value()) return done(*failure);
  collective->Start(
      [weak = weak_from_this(), collective = std::weak_ptr<CrossHostCollective>(collective),
       done = std::move(done)](absl::Status status) {
        if (const auto self = weak.lock()) {
          const absl::MutexLock lock(&self->mutex_);
          self->open_.erase(collective.lock());
          if (status.ok()) ++self->crossed_;
        }
        done(std::move(status));
      },
      [weak = weak_from_this(), name](int64_t worker, const absl::Status& why) {
        if (const auto self = weak.lock()) self->OnMessageFailed(worker, name, why);
      });
}

void DistributedRun::Abort(absl::Status why) {
  std::set<std::shared_ptr<CrossHostCollective>> open;
  {
    const absl::MutexLock lock(&mutex_);
    if (failure_.has_value()) return;
    failure_ = why;
    open = open_;
  }
  for (const auto& collective : open) collective->Fail(why);
}

void DistributedRun::End(const absl::Status& how) {
  {
    const absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    end_ = how;
  }
  Abort(absl::CancelledError("The run has ended."));
  calls_->Cancel();
}

std::shared_ptr<const Message> DistributedRun::Answer(const Key& question) const {
  if (question == text_question_) return MessageOfText(program_.Text());
  if (!(question == question_)) return nullptr;
  RunState state;
  state.digest = program_.Digest();
  state.text_bytes = program_.Text().size();
  const absl::MutexLock lock(&mutex_);
  state.fate = end_.has_value() ? static_cast<int64_t>(end_->code()) : RunState::kRuns;
  state.crossed = crossed_;
  if (end_.has_value()) state.SetMessage(end_->message());
  return MessageOf(state);
}

void DistributedRun::SetExchange(RunState* state) const {
  const absl::MutexLock lock(&mutex_);
  if (!end_.has_value()) state->SetMessage(program_.collectives.front());
}

void DistributedRun::OnMessageFailed(int64_t worker, const std::string& where, const absl::Status& why) {
  const std::string worker_name = workers_.Name(worker);
  if (why.code() == absl::StatusCode::kUnavailable) {
    return Abort(absl::UnavailableError(worker_name +
                                        " is gone: its process ended, or was killed, or the network to it was cut, "
                                        "while this worker waited for it in " +
                                        where + ". (" + std::string(why.message()) + ")"));
  }
  if (why.code() == absl::StatusCode::kInvalidArgument) {
    return Abort(absl::InvalidArgumentError(worker_name + " brings operands of other types or shapes to " + where +
                                            ": " + std::string(why.message()) +
                                            " Run the same program on all workers."));
  }
  Abort({why.code(), absl::StrCat("A message to or from ", worker_name, " failed in ", where, ": ", why.message())});
}

std::chrono::nanoseconds DistributedRun::CheckInterval() const {
  const std::chrono::nanoseconds interval(kPeerCheckInterval);
  return workers_.limit.count() > 0 ? std::min(interval, workers_.limit / 4) : interval;
}

void DistributedRun::CheckLater() {
  checking_ = true;
  Deadlines::Global().Add(Deadlines::Clock::now() + CheckInterval(), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->CheckPeers();
  });
}

void DistributedRun::CheckPeers() {
  std::vector<std::pair<std::shared_ptr<CrossHostCollective>, std::vector<int64_t>>> waiting;
  {
    const absl::MutexLock lock(&mutex_);
    checking_ = false;
    if (failure_.has_value() || open_.empty()) return;
    CheckLater();
    for (const auto& collective : open_) {
      if (Clock::now() - collective->since() >= CheckInterval()) waiting.push_back({collective, {}});
    }
  }
  std::set<int64_t> to_ask;
  for (auto& [collective, awaited] : waiting) awaited = collective->Awaited();
  std::optional<absl::Status> overdue;
  {
    const absl::MutexLock lock(&mutex_);
    for (const auto& [collective, awaited] : waiting) {
      if (overdue.has_value()) break;
      overdue = Overdue(*collective, awaited);
      for (const int64_t worker : awaited) {
        if (!std::exchange(peers_[worker].asked, true)) to_ask.insert(worker);
      }
    }
  }
  if (overdue.has_value()) return Abort(std::move(*overdue));
  for (const int64_t worker : to_ask) Ask(worker);
}

bool DistributedRun::IsElsewhere(const RunState& state) const {
  // The other worker waits in a host exchange that this worker has not begun. The exchange needs this worker, so that
  // wait cannot end before this run ends.
  return state.fate == RunState::kNotBegun && state.message[0] != 0 && host_exchanges_.has_value() &&
         state.exchange > *host_exchanges_;
}

std::optional<absl::Status> DistributedRun::Overdue(const CrossHostCollective& collective,
                                                    const std::vector<int64_t>& awaited) const {
  const auto now = Clock::now();
  for (const int64_t worker : awaited) {
    const auto peer = peers_.find(worker);
    if (peer == peers_.end() || !peer->second.state.has_value()) continue;
    const RunState& state = *peer->second.state;
    // Messages that the other worker sent earlier may still be in flight.
    if (now - peer->second.since < CheckInterval() / 2) continue;
    const std::string worker_name = workers_.Name(worker);
    if (state.fate >= 0) return absl::UnavailableError(DescribeEnd(state, worker_name, program_, collective.name()));
    if (IsElsewhere(state)) {
      return absl::UnavailableError(
          DescribeExchange(state.message, worker_name, program_.name, collective.name(), workers_.worker()));
    }
  }
  if (workers_.limit.count() == 0 || now - collective.since() < workers_.limit || awaited.empty()) return std::nullopt;
  std::string message;
  for (const int64_t worker : awaited) message += (message.empty() ? "" : "; ") + DescribeLate(worker);
  return absl::DeadlineExceededError(
      message + ". Worker " + std::to_string(workers_.worker()) + " waited for " + Seconds(workers_.limit) +
      ", the limit, in " + collective.name() + (program_.IsExchange() ? "" : " of `" + program_.name + "`") +
      ". All workers must run the same steps. If one is only slow, raise the strategy's `timeout`.");
}

std::string DistributedRun::DescribeLate(int64_t worker) const {
  const std::string worker_name = workers_.Name(worker);
  const auto peer = peers_.find(worker);
  if (peer != peers_.end() && peer->second.state.has_value() && peer->second.state->fate != RunState::kNotBegun) {
    return worker_name + " runs the same program and has not reached this collective";
  }
  return worker_name + (program_.IsExchange() ? " did not take part" : " did not begin this run") +
         ": it runs something else, hangs, or was stopped";
}

void DistributedRun::Ask(int64_t worker) {
  const auto answer = std::make_shared<Message>(sizeof(RunState));
  workers_.communicator->Ask(calls_, worker, question_, answer,
                             [weak = weak_from_this(), worker, answer](const absl::Status& status) {
                               const auto self = weak.lock();
                               if (self == nullptr || status.code() == absl::StatusCode::kCancelled) return;
                               if (!status.ok()) return self->OnMessageFailed(worker, "a collective", status);
                               self->OnState(worker, ValueOf<RunState>(*answer));
                             });
}

void DistributedRun::OnState(int64_t worker, const RunState& state) {
  {
    const absl::MutexLock lock(&mutex_);
    Peer& peer = peers_[worker];
    peer.asked = false;
    if (!peer.state.has_value() || peer.state->fate != state.fate) peer.since = Clock::now();
    peer.state = state;
  }
  if (state.fate != RunState::kNotBegun && state.digest != program_.Digest()) Compare(worker, state.text_bytes);
}

void DistributedRun::Compare(int64_t worker, std::size_t text_bytes) {
  const auto text = std::make_shared<Message>(text_bytes);
  workers_.communicator->Ask(
      calls_, worker, text_question_, text, [weak = weak_from_this(), worker, text](const absl::Status& status) {
        const auto self = weak.lock();
        if (self == nullptr || !status.ok()) return;
        const std::string worker_name = self->workers_.Name(worker);
        const auto difference = Difference(self->program_, Program::OfText(TextOf(*text)), worker_name);
        self->Abort(absl::InvalidArgumentError(difference.value_or(worker_name + " runs another program.")));
      });
}

std::shared_ptr<DistributedRun> Runs::Begin(const Workers& workers, const std::string& sequence, Program program,
                                            bool waits) {
  std::shared_ptr<DistributedRun> old;  // Destroyed after the lock is released.
  const absl::MutexLock lock(&mutex_);
  const auto exchanges = waits ? std::optional(sequences_[kMainThread].begun) : std::nullopt;
  Sequence& runs = sequences_[sequence];
  const std::string name = sequence + ":" + std::to_string(++runs.begun);
  runs.kept.push_back(std::make_shared<DistributedRun>(workers, name, std::move(program), exchanges));
  if (runs.kept.size() > kKeptRuns) {
    old = std::move(runs.kept.front());
    runs.kept.pop_front();
  }
  return runs.kept.back();
}

std::shared_ptr<const Message> Runs::Answer(const Key& question, std::size_t bytes) const {
  const absl::MutexLock lock(&mutex_);
  for (const auto& [name, sequence] : sequences_) {
    for (const auto& run : sequence.kept) {
      const std::shared_ptr<const Message> answer = run->Answer(question);
      if (answer != nullptr && answer->bytes() == bytes) return answer;
    }
  }
  RunState state;
  const auto main_thread = sequences_.find(kMainThread);
  if (main_thread != sequences_.end() && !main_thread->second.kept.empty()) {
    state.exchange = main_thread->second.begun;
    main_thread->second.kept.back()->SetExchange(&state);
  }
  std::string text(reinterpret_cast<const char*>(&state), sizeof(state));
  text.resize(bytes);
  return MessageOfText(text);
}

}  // namespace tensorflow_ipu::core
