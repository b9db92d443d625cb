// A run of a program on several workers, as seen by one of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/collectives/communicator.h"
#include "tensorflow_ipu/kernels/collectives/cross_host_collective.h"

namespace tensorflow_ipu::core {

// The properties of a program that must be equal on all workers. A `Program` may also describe a host exchange, which
// is a collective of host tensors outside of programs.
struct Program {
  std::string name;
  std::vector<std::string> collectives;  // The collectives that span workers, in the order of tracing.
  int64_t replicas = 0;                  // The number of replicas of this worker; 0 for a host exchange.
  int64_t chunk_bytes = 0;

  static Program OfExchange(const std::string& message, int64_t chunk_bytes) { return {"", {message}, 0, chunk_bytes}; }
  bool IsExchange() const { return replicas == 0; }

  std::string Text() const;
  static Program OfText(const std::string& text);

  // Equal for programs that may run together. The name is left out, because workers may have traced a function a
  // different number of times.
  uint64_t Digest() const;
};

// Returns a description of how the programs differ, or nothing if they match.
std::optional<std::string> Difference(const Program& ours, const Program& theirs, const std::string& worker);

// A worker's report on its part of a run. Workers send each other these bytes.
struct RunState {
  static constexpr std::size_t kMessageBytes = 1000;
  static constexpr int64_t kNotBegun = -2;
  static constexpr int64_t kRuns = -1;

  int64_t fate = kNotBegun;          // kNotBegun, kRuns, or the status code with which the run has ended.
  int64_t crossed = 0;               // The number of collectives that the worker has completed.
  int64_t exchange = 0;              // If kNotBegun: the number of the host exchange that the main thread waits for.
  uint64_t digest = 0;               // The digest of the program.
  uint64_t text_bytes = 0;           // The size of the program's text, which a second question requests.
  char message[kMessageBytes] = {};  // The reason of a failure, or a description of the host exchange.

  void SetMessage(std::string_view text) { text.copy(message, kMessageBytes - 1); }
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

// Workers identify a collective by three indices: of the run, of the call site, and of the use of the site. As long as
// all goes well, they send each other only data. A worker that has waited for long queries the status of the other
// workers. So it detects that a worker runs another program or has ended early. MPI ends all processes when one dies.
//
// The first failure becomes the run's status: all of its collectives fail with it. Thread-safe; must be owned by a
// shared_ptr.
class DistributedRun : public std::enable_shared_from_this<DistributedRun> {
 public:
  // `name` must be unique and the same on all workers. `host_exchanges` is the number of host exchanges that this
  // worker has begun. It is set only if this worker begins no host exchange during the run. In that case, a worker that
  // waits in a later host exchange cannot take part in this run.
  DistributedRun(Workers workers, std::string name, Program program,
                 std::optional<int64_t> host_exchanges = std::nullopt);
  ~DistributedRun();

  std::string ExchangeName() const { return "the exchange of " + program_.collectives.front(); }

  // Performs a collective; see CrossHostCollective. `key` identifies it; `name` is used in messages.
  void Cross(const std::string& name, const std::string& key, Exchange exchange, std::function<void(absl::Status)> done)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Fails all open and all later collectives of the run.
  void Abort(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends this worker's part of the run.
  void End(const absl::Status& how) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the answer to another worker's question: a `RunState` or the program's text. Returns null if the question
  // is about another run.
  std::shared_ptr<const Message> Answer(const Key& question) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Adds the host exchange that this worker waits for, if any, to `state`: this worker's report on a run that it has
  // not begun.
  void SetExchange(RunState* state) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Clock = std::chrono::steady_clock;

  struct Peer {
    bool asked = false;  // A question is in flight.
    std::optional<RunState> state;
    Clock::time_point since;  // The time of the first answer with this fate.
  };

  void OnMessageFailed(int64_t worker, const std::string& where, const absl::Status& why);
  void CheckPeers() ABSL_LOCKS_EXCLUDED(mutex_);
  void CheckLater() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<absl::Status> Overdue(const CrossHostCollective& collective, const std::vector<int64_t>& awaited) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string DescribeLate(int64_t worker) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsElsewhere(const RunState& state) const;

  void Ask(int64_t worker) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnState(int64_t worker, const RunState& state) ABSL_LOCKS_EXCLUDED(mutex_);
  void Compare(int64_t worker, std::size_t text_bytes);

  std::chrono::nanoseconds CheckInterval() const;

  const Workers workers_;
  const std::string name_;
  const Program program_;
  const std::optional<int64_t> host_exchanges_;
  // The prefix of data keys. It contains the digest, so workers with different programs exchange no data.
  const std::string data_;
  const Key question_;  // The key of questions about this run.
  const Key text_question_;
  const std::shared_ptr<Communicator::Calls> calls_;

  mutable absl::Mutex mutex_;
  std::set<std::shared_ptr<CrossHostCollective>> open_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Peer> peers_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> failure_ ABSL_GUARDED_BY(mutex_);
  int64_t crossed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool checking_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

// The runs that this process has begun. It answers the questions of other workers about them. All workers number the
// runs of a sequence in the same way. Thread-safe.
class Runs {
 public:
  // The sequence of the host exchanges that Python's main thread begins.
  static constexpr char kMainThread[] = "host:";

  // Begins the next run of a sequence. If `waits` is true, the main thread waits for the run, and so begins no host
  // exchange during the run.
  std::shared_ptr<DistributedRun> Begin(const Workers& workers, const std::string& sequence, Program program,
                                        bool waits) ABSL_LOCKS_EXCLUDED(mutex_);

  // See `Communicator::Answer`.
  std::shared_ptr<const Message> Answer(const Key& question, std::size_t bytes) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Sequence {
    int64_t begun = 0;
    std::deque<std::shared_ptr<DistributedRun>> kept;  // A late worker may still query them.
  };

  mutable absl::Mutex mutex_;
  std::map<std::string, Sequence> sequences_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu::core
