// Where the replicas of a run meet in collectives: nobody blocks, and everyone who waits gets an answer.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_RENDEZVOUS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_RENDEZVOUS_H_

#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tensorflow_ipu/kernels/core/answers.h"
#include "tensorflow_ipu/kernels/core/deadlines.h"
#include "tensorflow_ipu/kernels/core/exchange.h"
#include "tensorflow_ipu/kernels/core/outcome.h"

namespace tensorflow_ipu::core {

class Site;

// The replicas of one device, and the run that they are in.
//
// Why no run hangs. Arrive never blocks, so no thread that a replica needs to get on is held by another one's wait;
// what it may run for others (see answers.h) returns where their programs wait again. A replica that waits gets its
// answer from one of these: the last arrival of its group; the Leave of a replica that it waits for, which the runner
// calls for every replica whose program ends, however it ends; Abort; the limit for waits. So a run hangs only if all
// replicas wait for each other without end.
//
// Replicas that take the same branches do not. They run one executable, whose dependencies order its collectives alike
// on all of them. Of those that some replica has still to pass, take one that no other must come before: nothing keeps
// any replica from it, so all arrive there, and pass it. What is left are replicas that took different branches, and so
// stand at different call sites. These the watch finds: when all that run wait, none arrives, no feed is waited for,
// and the process computes nothing, nor would if it had a processor, the run is failed.
//
// Thread-safe; lives in a shared_ptr.
class Domain : public std::enable_shared_from_this<Domain> {
 public:
  // `device` is for messages. `others_wait` says whether a program waits for something else, such as data. Replicas
  // that wait for each other are found after two to three times `watch`.
  explicit Domain(std::string device, std::function<bool()> others_wait = nullptr,
                  std::chrono::nanoseconds watch = std::chrono::milliseconds(250));

  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  // Starts a run of so many replicas. What still waits in a run before is failed, and all of it forgotten.
  void Begin(int64_t replicas);

  // The replica's program has ended: it arrives nowhere any more.
  void Leave(int64_t replica);

  // Fails what waits, and what arrives later in this run. Only the first of several counts.
  void Abort(Outcome why);

  // Arrivals that wait.
  int64_t waiting() const;

 private:
  friend class Site;
  struct Meeting;

  // These need mutex_ held.
  void Close(Meeting& meeting);
  void Fail(const std::shared_ptr<Meeting>& meeting, const Outcome& why);
  void FailAll(const Outcome& why);
  bool AllWait() const;

  void GiveUp(const std::weak_ptr<Meeting>& weak, int64_t limit);
  void WatchLater();
  void Watch();

  const std::string device_;
  const std::function<bool()> others_wait_;
  const std::chrono::nanoseconds watch_;

  mutable std::mutex mutex_;
  // All below, and what sites and open meetings hold, is guarded by mutex_.
  int64_t run_ = 0;             // Counts the runs.
  std::vector<bool> here_;      // A replica: whether its program runs.
  std::vector<int64_t> waits_;  // A replica: how many of its arrivals wait.
  std::optional<Outcome> aborted_;
  std::unordered_set<std::shared_ptr<Meeting>> open_;
  int64_t arrivals_ = 0;

  // What the watch saw when it looked last.
  bool watching_ = false;
  int64_t seen_arrivals_ = 0;
  std::clock_t seen_clock_ = 0;
  std::chrono::steady_clock::time_point seen_at_;
  int idle_looks_ = 0;
};

// A call site of a program: what a replica's program calls there for the k-th time in a run meets what those of its
// group call there for the k-th time. A replica's uses of one site come one after the other (each needs the value that
// the one before returned), so a group has one open meeting at most.
//
// Thread-safe; lives in a shared_ptr.
class Site : public std::enable_shared_from_this<Site> {
 public:
  Site(std::string name, std::shared_ptr<Domain> domain) : name_(std::move(name)), domain_(std::move(domain)) {}

  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  const std::string& name() const { return name_; }

  // One of `replicas` arrives, with its part of the collective. The buffers must stay until it has its answer: the
  // value returned, or where there is none, what `deliver` gets, perhaps before this returns.
  //
  // A single replica meets nobody, and needs no run.
  std::optional<Outcome> Arrive(int64_t replica, int64_t replicas, const Collective& collective,
                                Contribution contribution, Deliver deliver);

  // Fails what waits here: the program that has the site is gone.
  void Close();

 private:
  friend class Domain;
  using Meeting = Domain::Meeting;

  Outcome PerformAlone(const Collective& collective, Contribution contribution) const;
  std::string Called() const;
  Outcome Interrupted() const;

  // These need the domain's mutex held.
  Outcome Refusal(int64_t replica, int64_t replicas, const Collective& collective, const Contribution& contribution);
  std::shared_ptr<Meeting> Open(const Group& group);

  // Why meetings of a group that a replica has left cannot be. The first words hold for all that come later: by then
  // more replicas may have left, on account of the failure.
  Outcome NeverComplete(const Group& group, const std::string& arrived);

  // Has what waits here fail, and what comes later in this run.
  Outcome Fail(Outcome why);

  const std::string name_;
  const std::shared_ptr<Domain> domain_;
  const std::shared_ptr<Pace> pace_ = std::make_shared<Pace>();

  // Guarded by the domain's mutex, and void once that has another run.
  int64_t run_ = 0;
  std::optional<Collective> collective_;            // Of the first arrival.
  std::optional<Outcome> failure_;                  // Why all later arrivals fail.
  std::vector<std::shared_ptr<Meeting>> meetings_;  // A group: its open meeting, or null.
  std::map<int64_t, Outcome> lost_;                 // A group: why it meets no more.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_RENDEZVOUS_H_
