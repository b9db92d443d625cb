// A run of a program on several workers, as one of them sees it: the collectives that span workers, and what the others
// say of their part.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_DISTRIBUTED_RUN_H_
#define TENSORFLOW_IPU_KERNELS_CORE_DISTRIBUTED_RUN_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/cross_host_collective.h"
#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/network.h"
#include "tensorflow_ipu/kernels/core/outcome.h"
#include "tensorflow_ipu/kernels/core/reports.h"

namespace tensorflow_ipu::core {

// Workers are in step by numbers: that of the run, that of the call site in its program, and how often a group has met
// there. While all is well, they exchange nothing but data. Each has two reports ready for all others: what it runs,
// and how that ended. A worker that has waited for another one for some time asks for them, and so learns of another
// program or of an early end; a process that is gone, the network tells at once.
//
// The first failure is the run's: all collectives fail with it, those that are open and those to come.
//
// Thread-safe; lives in a shared_ptr.
class DistributedRun : public std::enable_shared_from_this<DistributedRun> {
 public:
  // `name` is the same on all workers, and no other run has it. `host_exchanges`: how many exchanges of the host this
  // worker has begun, where it will begin no further one before the run has ended. A worker that waits in a later one
  // does not come.
  DistributedRun(Workers workers, std::string name, Program program,
                 std::optional<int64_t> host_exchanges = std::nullopt);
  ~DistributedRun();

  DistributedRun(const DistributedRun&) = delete;
  DistributedRun& operator=(const DistributedRun&) = delete;

  const Workers& workers() const { return workers_; }

  // Of the one collective of an exchange of the host, for messages.
  std::string ExchangeName() const { return "the exchange of " + program_.collectives.front(); }

  void Begin();

  // Performs a collective; see CrossHostCollective. `key` says which of the run it is, `name` says so in words.
  void Cross(const std::string& name, const std::string& key, Packer packer, std::function<void(Outcome)> done)
      IPU_EXCLUDES(mutex_);

  // Has what crosses fail, and what comes later.
  void Abort(Outcome why) IPU_EXCLUDES(mutex_);

  // This worker's part has ended so. Others may ask for that as long as this object lives.
  void End(const Outcome& how) IPU_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;

  // What is known of another worker.
  struct Peer {
    bool asked = false;
    bool begun = false;           // It says what it runs.
    std::optional<bool> answers;  // Whether its process does; once it was asked.
    std::optional<Report> ended;
    std::optional<std::string> elsewhere;  // In which exchange of the host it waits.
    Clock::time_point told_at;             // When either of the two was told.
  };

  void Lost(int64_t worker, const std::string& where, const Outcome& why);
  void Look() IPU_EXCLUDES(mutex_);
  void LookLater() IPU_REQUIRES(mutex_);
  std::optional<Outcome> Overdue(const CrossHostCollective& collective, const std::vector<int64_t>& awaited) const
      IPU_REQUIRES(mutex_);
  std::string Late(int64_t worker) const IPU_REQUIRES(mutex_);

  void Ask(int64_t worker) IPU_EXCLUDES(mutex_);
  void AskForEnd(int64_t worker) IPU_EXCLUDES(mutex_);
  void AskForExchange(int64_t worker) IPU_EXCLUDES(mutex_);
  void Told(int64_t worker, const Message& greeting) IPU_EXCLUDES(mutex_);
  void AskWhether(int64_t worker) IPU_EXCLUDES(mutex_);
  void Post(int64_t to, const char* what, const std::shared_ptr<const Message>& message);

  std::chrono::nanoseconds LookInterval() const;

  const Workers workers_;
  const std::string name_;
  const Program program_;
  const std::optional<int64_t> host_exchanges_;
  const std::string data_;  // What the keys of data begin with: workers whose programs differ never exchange any.
  const std::shared_ptr<Network::Calls> calls_;    // Of collectives, and questions.
  const std::shared_ptr<Network::Calls> reports_;  // Of what is ready for others.

  mutable Mutex mutex_;
  std::set<std::shared_ptr<CrossHostCollective>> open_ IPU_GUARDED_BY(mutex_);
  std::map<int64_t, Peer> peers_ IPU_GUARDED_BY(mutex_);
  std::optional<Outcome> failure_ IPU_GUARDED_BY(mutex_);
  int64_t crossed_ IPU_GUARDED_BY(mutex_) = 0;  // Collectives that succeeded.
  bool looking_ IPU_GUARDED_BY(mutex_) = false;
  bool ended_ IPU_GUARDED_BY(mutex_) = false;
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_DISTRIBUTED_RUN_H_
