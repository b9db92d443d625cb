// A run of a program on several workers, as one of them sees it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/communicator.h"
#include "tensorflow_ipu/kernels/core/cross_host_collective.h"
#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/status.h"

namespace tensorflow_ipu::core {

// A program, as far as its workers have to agree.
struct Program {
  std::string name;
  std::vector<std::string> collectives;  // Those that span workers, in the order of the trace.
  int64_t replicas = 0;                  // Of this worker; 0: an exchange of the host.
  int64_t chunk_bytes = 0;

  static Program OfExchange(const std::string& words, int64_t chunk_bytes) { return {"", {words}, 0, chunk_bytes}; }
  bool IsExchange() const { return replicas == 0; }

  std::string Text() const;
  static Program OfText(const std::string& text);

  // Equal for programs on which workers agree. Without the name: workers may have traced a function unequally often.
  uint64_t Digest() const;
};

// How the programs differ, if they do.
std::optional<std::string> Difference(const Program& ours, const Program& theirs, const std::string& worker);

// The first message.
struct Greeting {
  uint64_t digest;
  uint64_t text_bytes;
};

// How a worker's part of a run ended.
struct Report {
  static constexpr std::size_t kWords = 1000;

  int64_t code;
  int64_t crossed;  // Collectives that it took part in.
  char words[kWords];

  static Report Of(const Status& how, int64_t crossed);
};

// What a worker exchanges with all others outside of programs.
struct ExchangeNotice {
  static constexpr std::size_t kWords = 400;

  char words[kWords];

  static ExchangeNotice Of(const std::string& words);

  // Exchanges of the host are numbered alike on all workers. The name of the run keeps messages from a run that has
  // ended.
  static std::string Key(const std::string& run, int64_t number);
};

std::shared_ptr<Message> MessageOfText(const std::string& text);
std::string TextOf(const Message& message);

template <typename T>
std::shared_ptr<Message> MessageOf(const T& value) {
  return MessageOfText(std::string(reinterpret_cast<const char*>(&value), sizeof(value)));
}

template <typename T>
T ValueOf(const Message& message) {
  T value;
  TextOf(message).copy(reinterpret_cast<char*>(&value), sizeof(value));
  return value;
}

// Workers identify a collective by numbers: of the run, of the call site, and of the use of the site. They exchange
// data alone as long as all is well. Each worker offers two reports: what it runs, and how that ended. A worker that
// waits for long asks for them, and so finds another program or an early end. MPI ends all
// processes when one is lost.
//
// The first failure is the run's: all of its collectives fail. Thread-safe; lives in a shared_ptr.
class DistributedRun : public std::enable_shared_from_this<DistributedRun> {
 public:
  // `name` is unique and the same on all workers. `host_exchanges` counts the host's exchanges that this worker has
  // begun, if it begins none during the run: a worker that waits in a later exchange does not take part in this run.
  DistributedRun(Workers workers, std::string name, Program program,
                 std::optional<int64_t> host_exchanges = std::nullopt);
  ~DistributedRun();

  const Workers& workers() const { return workers_; }

  std::string ExchangeName() const { return "the exchange of " + program_.collectives.front(); }

  void Begin();

  // Performs a collective; see CrossHostCollective. `key` identifies it, `name` is for messages.
  void Cross(const std::string& name, const std::string& key, Exchange exchange, std::function<void(Status)> done)
      IPU_EXCLUDES(mutex_);

  // Fails all collectives of the run, open ones and later ones.
  void Abort(Status why) IPU_EXCLUDES(mutex_);

  // Ends this worker's part. Others may ask for the report as long as this object lives.
  void End(const Status& how) IPU_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;

  struct Peer {
    bool asked = false;
    bool begun = false;
    std::optional<Report> ended;
    std::optional<std::string> elsewhere;  // The exchange of the host in which it waits.
    Clock::time_point reported_at;
  };

  void OnMessageFailed(int64_t worker, const std::string& where, const Status& why);
  void CheckPeers() IPU_EXCLUDES(mutex_);
  void CheckLater() IPU_REQUIRES(mutex_);
  std::optional<Status> Overdue(const CrossHostCollective& collective, const std::vector<int64_t>& awaited) const
      IPU_REQUIRES(mutex_);
  std::string DescribeLate(int64_t worker) const IPU_REQUIRES(mutex_);

  void Ask(int64_t worker) IPU_EXCLUDES(mutex_);
  template <typename T, typename Note>
  void AskFor(int64_t worker, const std::string& key, Note note) IPU_EXCLUDES(mutex_);
  void OnGreeting(int64_t worker, const Message& greeting) IPU_EXCLUDES(mutex_);
  void Post(int64_t to, const char* what, const std::shared_ptr<const Message>& message);

  std::chrono::nanoseconds CheckInterval() const;

  const Workers workers_;
  const std::string name_;
  const Program program_;
  const std::optional<int64_t> host_exchanges_;
  const std::string data_;  // The prefix of data keys. Workers whose programs differ exchange no data.
  const std::shared_ptr<Communicator::Calls> calls_;
  const std::shared_ptr<Communicator::Calls> reports_;

  mutable Mutex mutex_;
  std::set<std::shared_ptr<CrossHostCollective>> open_ IPU_GUARDED_BY(mutex_);
  std::map<int64_t, Peer> peers_ IPU_GUARDED_BY(mutex_);
  std::optional<Status> failure_ IPU_GUARDED_BY(mutex_);
  int64_t crossed_ IPU_GUARDED_BY(mutex_) = 0;
  bool checking_ IPU_GUARDED_BY(mutex_) = false;
  bool ended_ IPU_GUARDED_BY(mutex_) = false;
};

}  // namespace tensorflow_ipu::core
