// Messages between processes that MPI has started.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/collectives/communicator.h"
#include "tensorflow_ipu/kernels/collectives/mpi_library.h"
#include "tensorflow_ipu/kernels/support/tuning.h"

namespace tensorflow_ipu::core {

// Joins the processes of an MPI communicator. Rank 0 gathers the names of all processes and broadcasts them. Not
// thread-safe.
class MpiJoin {
 public:
  // Each process sends its name in a field of this size.
  static constexpr std::size_t kNameBytes = 160;

  // MPI must be initialized. `communicator` is a handle of the library.
  static absl::Status Begin(const MpiLibrary& library, MpiLibrary::Handle communicator, const std::string& name,
                            std::unique_ptr<MpiJoin>* join);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const MpiLibrary& library() const { return library_; }
  MpiLibrary::Handle original() const { return original_; }
  MpiLibrary::Handle communicator() const { return duplicate_; }

  // Advances the join without blocking. Sets `joined` once all processes have joined; then `communicator` is a
  // duplicate that only they use.
  absl::Status Advance(bool* joined);

  // Returns the ranks that are known to be missing. Rank 0 checks all ranks, the others check only rank 0.
  std::vector<int> Missing() const;

  std::vector<std::string> Names() const;

  // Returns true if this host runs more of the processes than it has processors. A name ends with its host.
  bool HostIsCrowded() const;

 private:
  char* NameOf(int rank) { return table_.data() + static_cast<std::size_t>(rank) * kNameBytes; }
  absl::Status Share();

  MpiLibrary library_;
  MpiLibrary::Handle original_ = 0;
  MpiLibrary::Handle duplicate_ = 0;
  int rank_ = 0;
  int size_ = 1;
  bool shares_ = false;      // The broadcast of the names has begun.
  std::vector<char> table_;  // The names of all processes.
  // Open requests of MPI. The key is the rank of the other process, or at least `size_` for a request to all processes.
  std::map<int, MpiLibrary::Handle> requests_;
};

// Sends messages through MPI. The receiver requests a message by a note, which contains a tag of the receiver's choice.
// The sender then sends the data with this tag. So all data is received directly into its destination, and no process
// buffers data that was not requested.
//
// MPI has no wait that other events can end, so a thread polls the open requests. It sleeps longer the longer nothing
// happens. Only one thread at a time calls MPI, under `mutex_`.
class MpiCommunicator : public Communicator, public std::enable_shared_from_this<MpiCommunicator> {
 public:
  // All processes of the communicator must call it.
  static std::shared_ptr<MpiCommunicator> Make(const MpiJoin& join, Answer answer, absl::Status* status);
  ~MpiCommunicator() override = default;

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  std::shared_ptr<Calls> NewCalls() override;
  void Send(const std::shared_ptr<Calls>& calls, int64_t to, const Key& key, std::shared_ptr<const Message> message,
            Done done) override;
  void Receive(const std::shared_ptr<Calls>& calls, int64_t from, const Key& key, std::shared_ptr<Message> message,
               Done done) override;
  void Ask(const std::shared_ptr<Calls>& calls, int64_t of, const Key& question, std::shared_ptr<Message> answer,
           Done done) override;

  // Serves the other processes until all of them have called Leave. Afterwards the thread has ended, and calls fail.
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Handle = MpiLibrary::Handle;
  using Place = std::pair<int64_t, Key>;  // The rank of the other process, and the key of a message.
  class MpiCalls;

  struct Note {
    enum Kind : uint32_t {
      kRequest = 1,    // Requests a message of `bytes` bytes, to be sent with the tag.
      kQuestion = 2,   // Requests an answer in the same way.
      kOtherSize = 3,  // Replies to a request that the message has `bytes` bytes instead.
      kWithdraw = 4,   // Cancels a request.
      kWithdrawn = 5,  // Confirms a cancellation, unless the message is already in flight.
    };
    uint32_t kind;
    int32_t tag;
    int64_t from;
    Key key;
    uint64_t bytes;
  };
  // A message that the other worker has not requested yet.
  struct Offer {
    const void* calls;
    std::shared_ptr<const Message> message;
    Done done;
  };
  // A request of this worker. MPI may still write to the message after the call was cancelled.
  struct Awaited {
    const void* calls;
    Place place;
    std::shared_ptr<Message> message;
    Done done;  // Null after a cancellation.
    Handle request;
  };
  struct Sent {
    std::shared_ptr<const Message> message;
    std::unique_ptr<Note> note;
    Done done;
    Handle request;
  };
  struct Ended {
    Done done;
    absl::Status status;
  };

  MpiCommunicator(const MpiJoin& join, Answer answer)
      : mpi_(join.library()),
        communicator_(join.communicator()),
        rank_(join.rank()),
        size_(join.size()),
        shortest_sleep_(join.HostIsCrowded() ? kMpiCrowdedSleep : kMpiSpin / 4),
        answer_(std::move(answer)) {}

  void Request(Note::Kind kind, const std::shared_ptr<Calls>& calls, const Place& place,
               std::shared_ptr<Message> message, Done done) ABSL_LOCKS_EXCLUDED(mutex_);
  // Polls requests until `ends` returns true. `ends` is called under the lock.
  void Serve(const std::function<bool()>& ends) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Progress(std::vector<Ended>& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  template <typename Requests, typename RequestOf>
  bool EndDone(Requests& requests, RequestOf request_of, std::vector<Ended>& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsAwaited() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Take(const Note& note, std::vector<Ended>& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Listen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsDone(Handle* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Post(int64_t to, const Note& note) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendData(const Note& request, std::shared_ptr<const Message> message, Done done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Deliver(const Note& request, Offer offer, std::vector<Ended>& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Refusal(const Calls& calls, std::size_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Cancel(const void* calls) ABSL_LOCKS_EXCLUDED(mutex_);
  void Fail(int error, const char* what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndCalls(std::vector<Ended>& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void End(std::vector<Ended>& ended);

  const MpiLibrary mpi_;
  const Handle communicator_;
  const int64_t rank_;
  const int64_t size_;
  const std::chrono::nanoseconds shortest_sleep_;
  const Answer answer_;

  absl::Mutex mutex_;
  bool posted_ ABSL_GUARDED_BY(mutex_) = false;  // There is a new request to poll.
  bool stops_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  // The status with which calls fail: an error of MPI, or an error that is set when this process has left.
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  Note heard_ ABSL_GUARDED_BY(mutex_);  // The note that is being received.
  Handle listening_ ABSL_GUARDED_BY(mutex_) = 0;
  Handle barrier_ ABSL_GUARDED_BY(mutex_) = 0;
  bool all_are_here_ ABSL_GUARDED_BY(mutex_) = false;
  int32_t last_tag_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Place, Offer> offers_ ABSL_GUARDED_BY(mutex_);
  // Requests of other workers whose messages were not sent yet.
  std::map<Place, Note> requests_ ABSL_GUARDED_BY(mutex_);
  std::map<int32_t, Awaited> awaited_ ABSL_GUARDED_BY(mutex_);
  std::list<Sent> sent_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu::core
