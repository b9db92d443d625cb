// A run of a program on several workers, as one of them sees it.
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

// What a worker says of its part of a run.
struct RunState {
  static constexpr std::size_t kWords = 1000;
  static constexpr int64_t kNotBegun = -2;
  static constexpr int64_t kRuns = -1;

  int64_t fate = kNotBegun;  // Or the code of the status that it ended with.
  int64_t crossed = 0;       // Collectives that it took part in.
  int64_t exchange = 0;      // Without a run: the number of the exchange in which the main thread waits.
  uint64_t digest = 0;       // Of the program,
  uint64_t text_bytes = 0;   // whose text is the answer to another question.
  char words[kWords] = {};   // Why the run failed, or what is exchanged.

  void Say(std::string_view text) { text.copy(words, kWords - 1); }
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
// data alone as long as all is well. A worker that waits for long asks the others what they run and how that ended, and
// so finds another program or an early end. MPI ends all processes when one is lost.
//
// The first failure is the run's: all of its collectives fail. Thread-safe; lives in a shared_ptr.
class DistributedRun : public std::enable_shared_from_this<DistributedRun> {
 public:
  // `name` is unique and the same on all workers. `host_exchanges` counts the host's exchanges that this worker has
  // begun, if it begins none during the run: a worker that waits in a later exchange does not take part in this run.
  DistributedRun(Workers workers, std::string name, Program program,
                 std::optional<int64_t> host_exchanges = std::nullopt);
  ~DistributedRun();

  std::string ExchangeName() const { return "the exchange of " + program_.collectives.front(); }

  // Performs a collective; see CrossHostCollective. `key` identifies it, `name` is for messages.
  void Cross(const std::string& name, const std::string& key, Exchange exchange, std::function<void(absl::Status)> done)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Fails all collectives of the run, open ones and later ones.
  void Abort(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends this worker's part.
  void End(const absl::Status& how) ABSL_LOCKS_EXCLUDED(mutex_);

  // Answers another worker: a `RunState`, or the program's text; null if the question is about another run.
  std::shared_ptr<const Message> Answer(const Key& question) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Says in the state, of a worker that has not begun another run, that it waits in this exchange, if it does.
  void SayWhere(RunState* state) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Clock = std::chrono::steady_clock;

  struct Peer {
    bool asked = false;  // The answer is on its way.
    std::optional<RunState> state;
    Clock::time_point since;  // When the first answer with this fate came.
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
  const std::string data_;  // The prefix of data keys. Workers whose programs differ exchange no data.
  const Key question_;      // What others do.
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

// The runs that a process has begun, by which it answers the questions of other workers. Workers number the runs of a
// sequence alike. Thread-safe.
class Runs {
 public:
  // The sequence of exchanges that Python's main thread begins.
  static constexpr char kMainThread[] = "host:";

  // Begins the next run of a sequence. The main thread begins no exchange during the run if it `waits`.
  std::shared_ptr<DistributedRun> Begin(const Workers& workers, const std::string& sequence, Program program,
                                        bool waits) ABSL_LOCKS_EXCLUDED(mutex_);

  // See `Communicator::Answer`.
  std::shared_ptr<const Message> Answer(const Key& question, std::size_t bytes) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Sequence {
    int64_t begun = 0;
    std::deque<std::shared_ptr<DistributedRun>> kept;  // A late worker may still ask about them.
  };

  mutable absl::Mutex mutex_;
  std::map<std::string, Sequence> sequences_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu::core
