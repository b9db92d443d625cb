// One collective of a group whose replicas belong to several workers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/collectives/communicator.h"
#include "tensorflow_ipu/kernels/collectives/exchange.h"

namespace tensorflow_ipu::core {

// Performs a collective chunk by chunk. Several chunks are in flight, so that one is transferred while another is
// reduced.
//
// No thread blocks: received chunks are reduced on threads of the executor. Thread-safe; must be owned by a shared_ptr.
class CrossHostCollective : public std::enable_shared_from_this<CrossHostCollective> {
 public:
  using Clock = std::chrono::steady_clock;

  // `key` must be unique, and the same on all workers.
  CrossHostCollective(std::string name, std::string key, Exchange exchange, std::shared_ptr<Communicator> communicator,
                      std::shared_ptr<Communicator::Calls> calls);

  // Calls `done` once, on any thread. The replicas' buffers must stay alive until then. `lost(worker, why)` is called
  // when a message to or from a worker fails. `lost` must call Fail.
  void Start(std::function<void(absl::Status)> done, std::function<void(int64_t, absl::Status)> lost);

  // Ends the collective with this status as soon as no thread writes to the buffers.
  void Fail(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the workers whose messages are in flight.
  std::vector<int64_t> Awaited() const ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string& name() const { return name_; }
  Clock::time_point since() const { return since_; }

 private:
  using Messages = std::vector<std::shared_ptr<Message>>;  // By share; see `Exchange`.

  // A chunk is reduced at once or in two halves; see `Exchange::InHalves`. One thread at a time uses the messages: the
  // thread that begins a half, or the thread that receives the last message of the half.
  struct InFlightChunk {
    int64_t chunk;
    bool halves;
    bool second = false;
    Messages received;    // By share. `received[own]` is the message of this share to itself.
    int64_t pending = 0;  // Open calls of the communicator. Guarded by the collective's mutex.
  };

  void BeginNextChunk();
  void Begin(const std::shared_ptr<InFlightChunk>& in_flight);
  void Transfer(const std::shared_ptr<InFlightChunk>& in_flight, Messages to_send);
  void OnCallDone(const std::shared_ptr<InFlightChunk>& in_flight, std::size_t share, absl::Status status)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Advance(const std::shared_ptr<InFlightChunk>& in_flight);
  void AdvanceLater(const std::shared_ptr<InFlightChunk>& in_flight) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the part of the chunk that the share reduces.
  Chunk PartOf(const InFlightChunk& in_flight, std::size_t share) const;

  bool BeginWork() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndWork() ABSL_LOCKS_EXCLUDED(mutex_);
  void CompleteWithFailure(absl::Status why);

  std::string KeyOf(const InFlightChunk& in_flight, int64_t from) const;

  const std::string name_;
  const std::string key_;
  const Exchange exchange_;
  const std::shared_ptr<Communicator> communicator_;
  const std::shared_ptr<Communicator::Calls> calls_;
  const Clock::time_point since_ = Clock::now();
  std::function<void(absl::Status)> done_;
  std::function<void(int64_t, absl::Status)> lost_;

  mutable absl::Mutex mutex_;
  int64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t completed_chunks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<int64_t> awaited_ ABSL_GUARDED_BY(mutex_);  // By share: the number of calls in flight.
  int64_t working_ ABSL_GUARDED_BY(mutex_) = 0;           // The number of threads that use the replicas' buffers.
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool completed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu::core
