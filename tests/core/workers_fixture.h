// Workers within one process: replica groups whose messages are copied in memory, and a communicator that tests can
// break.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow_ipu/kernels/collectives/distributed_run.h"
#include "tensorflow_ipu/kernels/collectives/rendezvous.h"
#include "tensorflow_ipu/kernels/support/threads.h"
#include "tests/core/fake_mpi.h"
#include "tests/core/rendezvous_fixture.h"

namespace check {

using tensorflow_ipu::core::Communicator;
using tensorflow_ipu::core::DistributedRun;
using tensorflow_ipu::core::Key;
using tensorflow_ipu::core::Message;
using tensorflow_ipu::core::Program;
using tensorflow_ipu::core::Runs;
using tensorflow_ipu::core::Workers;

// The messages of all workers. Calls end on other threads, as with MPI.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  using Place = std::pair<std::pair<int64_t, int64_t>, Key>;

  struct Call {
    std::shared_ptr<Message> to;
    std::shared_ptr<const Message> from;
    Communicator::Done done;
    const void* calls;
  };

  // Matches a call to send with a call to receive at the same place. The later one transfers the message.
  void Match(const Place& place, Call call) {
    Call other;
    absl::Status status;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (cancelled_.count(call.calls) > 0) {
        status = absl::CancelledError("cancelled");
      } else if (gone_.count(place.first.first) > 0 && call.to != nullptr) {
        status = absl::UnavailableError("reset");
      } else {
        auto found = calls_.find(place);
        if (found == calls_.end() || (found->second.to == nullptr) == (call.to == nullptr)) {
          calls_.emplace(place, std::move(call));
          return;
        }
        other = std::move(found->second);
        calls_.erase(found);
      }
    }
    if (!status.ok()) return End(call.done, status);
    Call& receiver = call.to != nullptr ? call : other;
    Call& sender = call.to != nullptr ? other : call;
    if (receiver.to->bytes() != sender.from->bytes()) {
      End(receiver.done, absl::InvalidArgumentError(std::to_string(sender.from->bytes()) + " bytes, not " +
                                                    std::to_string(receiver.to->bytes()) + "."));
    } else {
      std::memcpy(receiver.to->data(), sender.from->data(), receiver.to->bytes());
      End(receiver.done, absl::OkStatus());
    }
    End(sender.done, absl::OkStatus());
  }

  // Lets a worker answer a question.
  void Ask(int64_t worker, const Key& question, const Call& call) {
    Communicator::Answer answer;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (cancelled_.count(call.calls) > 0) return End(call.done, absl::CancelledError("cancelled"));
      if (gone_.count(worker) > 0) return End(call.done, absl::UnavailableError("reset"));
      answer = answers_[worker];
    }
    std::memcpy(call.to->data(), answer(question, call.to->bytes())->data(), call.to->bytes());
    End(call.done, absl::OkStatus());
  }

  void SetAnswer(int64_t worker, Communicator::Answer answer) {
    std::lock_guard<std::mutex> lock(mutex_);
    answers_[worker] = std::move(answer);
  }

  void Cancel(const void* calls) {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_.insert(calls);
    EndAll(absl::CancelledError("cancelled"), [&](const Place&, const Call& call) { return call.calls == calls; });
  }

  // Fails the calls that wait for the worker, and later ones.
  void Kill(int64_t worker) {
    std::lock_guard<std::mutex> lock(mutex_);
    gone_.insert(worker);
    EndAll(absl::UnavailableError("reset"),
           [&](const Place& place, const Call& call) { return place.first.first == worker && call.to != nullptr; });
  }

  // Waits until no call is open.
  bool AwaitNone() {
    std::unique_lock<std::mutex> lock(mutex_);
    return fewer_.wait_for(lock, kDeadline, [this] { return calls_.empty(); });
  }

  static void End(const Communicator::Done& done, const absl::Status& status) {
    tensorflow_ipu::core::Executor::Global().Run([done, status](const absl::Status&) { done(status); });
  }

 private:
  template <typename Concerns>
  void EndAll(const absl::Status& status, Concerns concerns) {
    for (auto call = calls_.begin(); call != calls_.end();) {
      const bool ends = concerns(call->first, call->second);
      if (ends) End(call->second.done, status);
      call = ends ? calls_.erase(call) : std::next(call);
    }
    fewer_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable fewer_;
  std::multimap<Place, Call> calls_;
  std::set<const void*> cancelled_;
  std::set<int64_t> gone_;
  std::map<int64_t, Communicator::Answer> answers_;
};

class MemoryCommunicator : public Communicator {
 public:
  MemoryCommunicator(std::shared_ptr<Exchange> exchange, int64_t worker, int64_t workers)
      : exchange_(std::move(exchange)), worker_(worker), workers_(workers) {}

  int64_t rank() const override { return worker_; }
  int64_t size() const override { return workers_; }

  class MemoryCalls : public Calls {
   public:
    explicit MemoryCalls(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
    void Cancel() override { exchange_->Cancel(this); }

   private:
    const std::shared_ptr<Exchange> exchange_;
  };

  std::shared_ptr<Calls> NewCalls() override {
    std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back(std::make_shared<MemoryCalls>(exchange_));  // Kept, so that addresses stay unique.
    return calls_.back();
  }

  void Send(const std::shared_ptr<Calls>& calls, int64_t to, const Key& key, std::shared_ptr<const Message> message,
            Done done) override {
    exchange_->Match({{worker_, to}, key}, {nullptr, std::move(message), std::move(done), calls.get()});
  }

  void Receive(const std::shared_ptr<Calls>& calls, int64_t from, const Key& key, std::shared_ptr<Message> message,
               Done done) override {
    exchange_->Match({{from, worker_}, key}, {std::move(message), nullptr, std::move(done), calls.get()});
  }

  void Ask(const std::shared_ptr<Calls>& calls, int64_t of, const Key& question, std::shared_ptr<Message> answer,
           Done done) override {
    exchange_->Ask(of, question, {std::move(answer), nullptr, std::move(done), calls.get()});
  }

 private:
  const std::shared_ptr<Exchange> exchange_;
  const int64_t worker_;
  const int64_t workers_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Calls>> calls_;
};

// A run of a program with two call sites, on several workers of several replicas.
struct DistributedRuns {
  DistributedRuns(int64_t workers, int64_t replicas, std::chrono::nanoseconds limit = kDeadline, bool over_mpi = false)
      : local(replicas), all(workers * replicas) {
    std::vector<Communicator::Answer> answers;
    for (int64_t worker = 0; worker < workers; ++worker) {
      begun.push_back(std::make_shared<Runs>());
      answers.push_back(
          [&own = *begun.back()](const Key& question, std::size_t bytes) { return own.Answer(question, bytes); });
      exchange->SetAnswer(worker, answers.back());
    }
    if (over_mpi) {
      mpi = std::make_unique<FakeMpi>(static_cast<int>(workers));
      communicators = JoinedCommunicators(*mpi, answers);
    }
    std::vector<std::string> names;
    for (int64_t worker = 0; worker < workers; ++worker) names.push_back("host" + std::to_string(worker));
    for (int64_t worker = 0; worker < workers; ++worker) {
      std::shared_ptr<Communicator> communicator = std::make_shared<MemoryCommunicator>(exchange, worker, workers);
      if (over_mpi) communicator = communicators[static_cast<std::size_t>(worker)];
      worker_views.push_back({names, limit, communicator});
      replica_groups.push_back(std::make_shared<ReplicaGroup>("device"));
      sites.push_back(std::make_shared<CallSite>("first", replica_groups.back(), "a sum"));
      others.push_back(std::make_shared<CallSite>("second", replica_groups.back(), "another sum"));
    }
    runs.resize(worker_views.size());
    for (int64_t worker = 0; worker < workers; ++worker) Begin(worker);
  }

  ~DistributedRuns() {
    for (const auto& run : runs) run->End(absl::OkStatus());
    for (const auto& communicator : communicators) communicator->Leave();
  }

  // Begins the worker's next run. With `waits`, the worker's main thread waits for the run.
  void Begin(int64_t worker, std::vector<std::string> collectives = {"a sum", "another sum"}, bool waits = false) {
    const auto index = static_cast<std::size_t>(worker);
    runs[index] =
        begun[index]->Begin(worker_views[index], "ipu:0", Program{"train", std::move(collectives), local, 0}, waits);
    replica_groups[index]->Begin(local, worker, static_cast<int64_t>(worker_views.size()), runs[index],
                                 {sites[index], others[index]});
  }

  // Begins an exchange of the worker's main thread.
  std::shared_ptr<DistributedRun> BeginExchange(int64_t worker, const std::string& words) const {
    const auto index = static_cast<std::size_t>(worker);
    return begun[index]->Begin(worker_views[index], Runs::kMainThread, Program::OfExchange(words, 0), false);
  }

  CallSite& SiteOf(int64_t replica) const { return *sites[static_cast<std::size_t>(replica / local)]; }

  std::shared_ptr<Arrival> ArriveAt(int64_t replica, std::vector<int64_t> values,
                                    const Collective& collective = SumOf()) const {
    return Arrive(SiteOf(replica), replica, all, std::move(values), collective);
  }

  std::unique_ptr<FakeMpi> mpi;
  std::vector<std::shared_ptr<MpiCommunicator>> communicators;
  const int64_t local;
  const int64_t all;
  const std::shared_ptr<Exchange> exchange = std::make_shared<Exchange>();
  std::vector<Workers> worker_views;
  std::vector<std::shared_ptr<Runs>> begun;
  std::vector<std::shared_ptr<ReplicaGroup>> replica_groups;
  std::vector<std::shared_ptr<CallSite>> sites;
  std::vector<std::shared_ptr<CallSite>> others;
  std::vector<std::shared_ptr<DistributedRun>> runs;
};

}  // namespace check
