#include "tensorflow_ipu/kernels/core/distributed_run.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

#include "tensorflow_ipu/kernels/core/threads.h"
#include "tensorflow_ipu/kernels/core/tuning.h"

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

// FNV-1a.
uint64_t Program::Digest() const {
  Program nameless = *this;
  nameless.name.clear();
  uint64_t digest = 0xcbf29ce484222325ull;
  for (const char letter : nameless.Text()) {
    digest = (digest ^ static_cast<unsigned char>(letter)) * 0x100000001b3ull;
  }
  return digest;
}

std::optional<std::string> Difference(const Program& ours, const Program& theirs, const std::string& worker) {
  if (ours.replicas != theirs.replicas) {
    return worker + " has " + Counted(static_cast<std::size_t>(theirs.replicas), "replica") +
           " of the program, and this worker has " + std::to_string(ours.replicas) +
           ". Configure as many IPUs on all workers.";
  }
  if (ours.chunk_bytes != theirs.chunk_bytes) {
    return worker + " sends chunks of up to " + std::to_string(theirs.chunk_bytes) + " bytes, and this worker " +
           std::to_string(ours.chunk_bytes) +
           ". Set `optimizations.maximum_cross_replica_sum_buffer_size` alike on all workers.";
  }
  const std::size_t both = std::min(ours.collectives.size(), theirs.collectives.size());
  for (std::size_t i = 0; i < both; ++i) {
    if (ours.collectives[i] == theirs.collectives[i]) continue;
    if (ours.IsExchange()) {
      return worker + " exchanges " + theirs.collectives[i] + ", and this worker " + ours.collectives[i] +
             ". Have all workers exchange tensors of the same types and shapes, in the same order.";
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

Report Report::Of(const Status& how, int64_t crossed) {
  Report report{static_cast<int64_t>(how.code), crossed, {}};
  how.message.copy(report.words, kWords - 1);
  return report;
}

ExchangeNotice ExchangeNotice::Of(const std::string& words) {
  ExchangeNotice exchange{};
  words.copy(exchange.words, kWords - 1);
  return exchange;
}

std::string ExchangeNotice::Key(const std::string& run, int64_t number) {
  return run + ":host:" + std::to_string(number);
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

constexpr char kGreeting[] = "greeting";
constexpr char kText[] = "text";
constexpr char kEnd[] = "end";

std::string Seconds(std::chrono::nanoseconds time) {
  const int64_t tenths = time / std::chrono::milliseconds(100);
  return std::to_string(tenths / 10) + (tenths % 10 == 0 ? "" : "." + std::to_string(tenths % 10)) + " s";
}

std::string DescribeEnd(const Report& report, const std::string& worker, const Program& run, const std::string& where) {
  if (run.IsExchange()) return worker + " gave up " + where + ": " + report.words;
  const std::string& program = run.name;
  const std::string crossed = Counted(static_cast<std::size_t>(report.crossed), "collective");
  if (static_cast<Code>(report.code) == Code::kOk) {
    return worker + " ended its run of `" + program + "` after " + crossed + ", and this worker waits for it in " +
           where + ". Have all workers run equally many steps, and take the same branches.";
  }
  return worker + " failed in its run of `" + program + "`, after " + crossed + ": " + report.words;
}

std::string DescribeExchange(const std::string& exchange, const std::string& worker, const std::string& program,
                             const std::string& where, int64_t own) {
  return worker + " did not begin this run of `" + program + "`: it waits for all workers to exchange " + exchange +
         ", while worker " + std::to_string(own) + " waits for it in " + where +
         ". Have all workers run the same programs, equally often.";
}

}  // namespace

DistributedRun::DistributedRun(Workers workers, std::string name, Program program,
                               std::optional<int64_t> host_exchanges)
    : workers_(std::move(workers)),
      name_(std::move(name)),
      program_(std::move(program)),
      host_exchanges_(host_exchanges),
      data_(name_ + ":" + std::to_string(program_.Digest())),
      calls_(workers_.communicator->NewCalls()),
      reports_(workers_.communicator->NewCalls()) {}

DistributedRun::~DistributedRun() {
  calls_->Cancel();
  reports_->Cancel();
}

void DistributedRun::Begin() {
  const std::shared_ptr<const Message> text = MessageOfText(program_.Text());
  const std::shared_ptr<const Message> greeting = MessageOf(Greeting{program_.Digest(), text->bytes()});
  for (int64_t worker = 0; worker < workers_.count(); ++worker) {
    if (worker == workers_.worker()) continue;
    Post(worker, kGreeting, greeting);
    Post(worker, kText, text);
  }
}

void DistributedRun::Post(int64_t to, const char* what, const std::shared_ptr<const Message>& message) {
  workers_.communicator->Send(reports_, to, name_ + ":" + what, message, nullptr);
}

void DistributedRun::Cross(const std::string& name, const std::string& key, Exchange exchange,
                           std::function<void(Status)> done) {
  const auto collective = std::make_shared<CrossHostCollective>(name, data_ + ":" + key, std::move(exchange),
                                                                workers_.communicator, calls_);
  std::optional<Status> failure;
  {
    const Lock lock(mutex_);
    failure = failure_;
    if (!failure.has_value()) {
      open_.insert(collective);
      if (!checking_) CheckLater();
    }
  }
  if (failure.has_value()) return done(*failure);
  collective->Start(
      [weak = weak_from_this(), collective = std::weak_ptr<CrossHostCollective>(collective),
       done = std::move(done)](Status status) {
        if (const auto self = weak.lock()) {
          const Lock lock(self->mutex_);
          self->open_.erase(collective.lock());
          if (status.ok()) ++self->crossed_;
        }
        done(std::move(status));
      },
      [weak = weak_from_this(), name](int64_t worker, const Status& why) {
        if (const auto self = weak.lock()) self->OnMessageFailed(worker, name, why);
      });
}

void DistributedRun::Abort(Status why) {
  std::set<std::shared_ptr<CrossHostCollective>> open;
  {
    const Lock lock(mutex_);
    if (failure_.has_value()) return;
    failure_ = why;
    open = open_;
  }
  for (const auto& collective : open) collective->Fail(why);
}

void DistributedRun::End(const Status& how) {
  int64_t crossed = 0;
  {
    const Lock lock(mutex_);
    if (ended_) return;
    ended_ = true;
    crossed = crossed_;
  }
  Abort(Status::Cancelled("The run has ended."));
  calls_->Cancel();
  const std::shared_ptr<const Message> report = MessageOf(Report::Of(how, crossed));
  for (int64_t worker = 0; worker < workers_.count(); ++worker) {
    if (worker != workers_.worker()) Post(worker, kEnd, report);
  }
}

void DistributedRun::OnMessageFailed(int64_t worker, const std::string& where, const Status& why) {
  const std::string who = workers_.Name(worker);
  if (why.code == Code::kUnavailable) {
    return Abort(Status::Unavailable(who +
                                     " is gone: its process ended, or was killed, or the network to it was cut, "
                                     "while this worker waited for it in " +
                                     where + ". (" + why.message + ")"));
  }
  if (why.code == Code::kInvalidArgument) {
    return Abort(Status::InvalidArgument(who + " brings operands of other types or shapes to " + where + ": " +
                                         why.message + " Run the same program on all workers."));
  }
  Abort({why.code, "A message to or from " + who + " failed in " + where + ": " + why.message});
}

std::chrono::nanoseconds DistributedRun::CheckInterval() const {
  const std::chrono::nanoseconds often(kPeerCheckInterval);
  return workers_.limit.count() > 0 ? std::min(often, workers_.limit / 4) : often;
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
    const Lock lock(mutex_);
    checking_ = false;
    if (failure_.has_value() || open_.empty()) return;
    CheckLater();
    for (const auto& collective : open_) {
      if (Clock::now() - collective->since() >= CheckInterval()) waiting.push_back({collective, {}});
    }
  }
  std::set<int64_t> to_ask;
  for (auto& [collective, awaited] : waiting) awaited = collective->Awaited();
  std::optional<Status> overdue;
  {
    const Lock lock(mutex_);
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

std::optional<Status> DistributedRun::Overdue(const CrossHostCollective& collective,
                                              const std::vector<int64_t>& awaited) const {
  const auto now = Clock::now();
  for (const int64_t worker : awaited) {
    const auto peer = peers_.find(worker);
    if (peer == peers_.end()) continue;
    const Peer& known = peer->second;
    const bool elsewhere = known.elsewhere.has_value() && !known.begun;
    if (!known.ended.has_value() && !elsewhere) continue;
    // Its earlier messages may still be in flight.
    if (now - known.reported_at < CheckInterval() / 2) continue;
    const std::string who = workers_.Name(worker);
    return Status::Unavailable(
        elsewhere ? DescribeExchange(*known.elsewhere, who, program_.name, collective.name(), workers_.worker())
                  : DescribeEnd(*known.ended, who, program_, collective.name()));
  }
  if (workers_.limit.count() == 0 || now - collective.since() < workers_.limit || awaited.empty()) return std::nullopt;
  std::string words;
  for (const int64_t worker : awaited) words += (words.empty() ? "" : "; ") + DescribeLate(worker);
  return Status::DeadlineExceeded(words + ". Worker " + std::to_string(workers_.worker()) + " waited for " +
                                  Seconds(workers_.limit) + ", the limit, in " + collective.name() +
                                  (program_.IsExchange() ? "" : " of `" + program_.name + "`") +
                                  ". Have all workers run the same steps, or raise the strategy's `timeout`.");
}

std::string DistributedRun::DescribeLate(int64_t worker) const {
  const std::string who = workers_.Name(worker);
  const auto known = peers_.find(worker);
  if (known != peers_.end() && known->second.begun) {
    return who + " runs the same program and did not come there";
  }
  return who + (program_.IsExchange() ? " did not come" : " did not begin this run") +
         ": it does something else, hangs, or was stopped";
}

void DistributedRun::Ask(int64_t worker) {
  const auto greeting = std::make_shared<Message>(sizeof(Greeting));
  workers_.communicator->Receive(calls_, worker, name_ + ":" + kGreeting, greeting,
                                 [weak = weak_from_this(), worker, greeting](const Status& status) {
                                   const auto self = weak.lock();
                                   if (self == nullptr || status.code == Code::kCancelled) return;
                                   if (!status.ok()) return self->OnMessageFailed(worker, "a collective", status);
                                   self->OnGreeting(worker, *greeting);
                                 });
  AskFor<Report>(worker, name_ + ":" + kEnd, [](Peer& peer, const Report& report) { peer.ended = report; });
  if (!host_exchanges_.has_value()) return;
  // The next one cannot begin before this run has ended, since this worker would have to take part.
  AskFor<ExchangeNotice>(worker, ExchangeNotice::Key(name_, *host_exchanges_ + 1),
                         [](Peer& peer, const ExchangeNotice& exchange) { peer.elsewhere = exchange.words; });
}

// Receives what a worker may report later.
template <typename T, typename Note>
void DistributedRun::AskFor(int64_t worker, const std::string& key, Note note) {
  const auto report = std::make_shared<Message>(sizeof(T));
  workers_.communicator->Receive(calls_, worker, key, report,
                                 [weak = weak_from_this(), worker, report, note](const Status& status) {
                                   const auto self = weak.lock();
                                   if (self == nullptr || !status.ok()) return;
                                   const Lock lock(self->mutex_);
                                   Peer& peer = self->peers_[worker];
                                   note(peer, ValueOf<T>(*report));
                                   peer.reported_at = Clock::now();
                                 });
}

void DistributedRun::OnGreeting(int64_t worker, const Message& message) {
  const auto greeting = ValueOf<Greeting>(message);
  {
    const Lock lock(mutex_);
    peers_[worker].begun = true;
  }
  if (greeting.digest == program_.Digest()) return;
  const auto text = std::make_shared<Message>(greeting.text_bytes);
  workers_.communicator->Receive(
      calls_, worker, name_ + ":" + kText, text, [weak = weak_from_this(), worker, text](const Status& status) {
        const auto self = weak.lock();
        if (self == nullptr || !status.ok()) return;
        const auto difference = Difference(self->program_, Program::OfText(TextOf(*text)), self->workers_.Name(worker));
        self->Abort(
            Status::InvalidArgument(difference.value_or(self->workers_.Name(worker) + " runs another program.")));
      });
}

}  // namespace tensorflow_ipu::core
