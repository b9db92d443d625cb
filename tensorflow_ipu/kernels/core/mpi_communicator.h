// Messages between the processes that MPI has started.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow_ipu/kernels/core/communicator.h"
#include "tensorflow_ipu/kernels/core/mpi_library.h"
#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/status.h"

namespace tensorflow_ipu::core {

// The processes of an MPI communicator, until all of them have joined. Not thread-safe.
class MpiJoin {
 public:
  // Each process says its name in so many bytes.
  static constexpr std::size_t kNameBytes = 160;

  // Initializes MPI, unless that was done. `communicator` is a handle of the library, or 0 for all processes.
  static Status Open(const MpiLibrary& library, MpiLibrary::Handle communicator, const std::string& name,
                     std::unique_ptr<MpiJoin>* join);

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool initialized_here() const { return initialized_here_; }

  // Tries to go on. Returns whether all processes have joined; then `communicator` is a duplicate of theirs alone.
  Status Advance(bool* joined);

  // The processes that are known to be missing: rank 0 knows about all, and the others about rank 0.
  std::vector<int> Missing() const;

  const MpiLibrary& library() const { return library_; }
  MpiLibrary::Handle communicator() const { return duplicate_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  Status Begin(const std::string& name);
  Status TestAll(bool* done);

  MpiLibrary library_;
  MpiLibrary::Handle original_ = 0;
  MpiLibrary::Handle duplicate_ = 0;
  bool initialized_here_ = false;
  int rank_ = 0;
  int size_ = 1;
  enum class Stage { kNames, kTable, kDuplicate, kJoined } stage_ = Stage::kNames;
  std::vector<char> table_;                     // The names of all, which rank 0 gathers and sends to the others.
  std::map<int, MpiLibrary::Handle> requests_;  // By the other rank.
  std::vector<std::string> names_;
};

// The receiver asks for a message by a note, and the sender answers with the data under the tag that the receiver has
// chosen. So all data are read straight into their memory, and no process stores what nobody asked for.
//
// MPI has nothing to block on, so a thread tests the open requests. The longer nothing happens, the longer it sleeps.
// One thread at a time calls MPI, under `mutex_`.
class MpiCommunicator : public Communicator, public std::enable_shared_from_this<MpiCommunicator> {
 public:
  // All processes of the communicator have made one.
  static std::shared_ptr<MpiCommunicator> Make(const MpiJoin& join, Status* status);
  ~MpiCommunicator() override = default;

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  std::shared_ptr<Calls> NewCalls() override;
  void Send(const std::shared_ptr<Calls>& calls, int64_t to, const std::string& key,
            std::shared_ptr<const Message> message, Done done) override;
  void Receive(const std::shared_ptr<Calls>& calls, int64_t from, const std::string& key,
               std::shared_ptr<Message> message, Done done) override;
  void Abort(int code) override;

  // Waits until all processes have come here, and serves them meanwhile. Then stops, as does the thread.
  void AwaitAll() IPU_EXCLUDES(mutex_);

  // Stops the thread; later calls fail.
  void Stop() IPU_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  using Handle = MpiLibrary::Handle;
  using Digest = std::array<uint64_t, 2>;    // Of a key.
  using Place = std::pair<int64_t, Digest>;  // A message from or to another rank.
  class MpiCalls;

  struct Note {
    enum Kind : uint32_t {
      kAsk = 1,        // Requests a message of `bytes` bytes, to be sent with the tag.
      kOtherSize = 2,  // The answer: the message has `bytes` bytes instead.
      kWithdraw = 3,   // Cancels a request.
      kWithdrawn = 4,  // The answer, unless the message is on its way.
    };
    uint32_t kind;
    int32_t tag;
    int64_t from;
    Digest key;
    uint64_t bytes;
  };
  // A message that the other worker has not requested yet.
  struct Offer {
    const void* calls;
    std::shared_ptr<const Message> message;
    Done done;
  };
  struct Request {
    int32_t tag;
    uint64_t bytes;
  };
  // A request of this worker. MPI may write to the message after a call was cancelled.
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
    Status status;
  };

  MpiCommunicator(const MpiLibrary& mpi, Handle communicator, int rank, int size)
      : mpi_(mpi), communicator_(communicator), rank_(rank), size_(size) {}

  void Poll() IPU_EXCLUDES(mutex_);
  bool Progress(std::vector<Ended>& ended) IPU_REQUIRES(mutex_);
  bool IsAwaited() const IPU_REQUIRES(mutex_);
  void Take(const Note& note, std::vector<Ended>& ended) IPU_REQUIRES(mutex_);
  void Listen() IPU_REQUIRES(mutex_);
  bool IsDone(Handle* request) IPU_REQUIRES(mutex_);
  void Post(int64_t to, const Note& note) IPU_REQUIRES(mutex_);
  void SendData(int64_t to, int32_t tag, std::shared_ptr<const Message> message, Done done) IPU_REQUIRES(mutex_);
  void Answer(const Place& place, const Request& request, Offer offer, std::vector<Ended>& ended) IPU_REQUIRES(mutex_);
  void Cancel(const void* calls) IPU_EXCLUDES(mutex_);
  void Fail(int error, const char* what) IPU_REQUIRES(mutex_);
  void Wake() IPU_REQUIRES(mutex_);
  static Digest DigestOf(const std::string& key);
  static void End(std::vector<Ended>& ended);

  const MpiLibrary mpi_;
  const Handle communicator_;
  const int64_t rank_;
  const int64_t size_;

  Mutex mutex_;
  Condition changed_;
  bool posted_ IPU_GUARDED_BY(mutex_) = false;  // There is something new to test.
  bool stops_ IPU_GUARDED_BY(mutex_) = false;
  bool stopped_ IPU_GUARDED_BY(mutex_) = false;
  Status failure_ IPU_GUARDED_BY(mutex_);  // Of MPI. Later calls fail with it.
  Note heard_ IPU_GUARDED_BY(mutex_);      // The note that is being received.
  Handle listening_ IPU_GUARDED_BY(mutex_) = 0;
  Handle barrier_ IPU_GUARDED_BY(mutex_) = 0;
  bool all_are_here_ IPU_GUARDED_BY(mutex_) = false;
  int32_t last_tag_ IPU_GUARDED_BY(mutex_) = 0;
  std::map<Place, Offer> offers_ IPU_GUARDED_BY(mutex_);
  std::map<Place, Request> requests_ IPU_GUARDED_BY(mutex_);
  std::map<int32_t, Awaited> awaited_ IPU_GUARDED_BY(mutex_);
  std::list<Sent> sent_ IPU_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu::core
