// One collective of a group that spans workers: from the own replicas' data to everybody's results.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_CROSS_HOST_COLLECTIVE_H_
#define TENSORFLOW_IPU_KERNELS_CORE_CROSS_HOST_COLLECTIVE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/network.h"
#include "tensorflow_ipu/kernels/core/outcome.h"
#include "tensorflow_ipu/kernels/core/packer.h"

namespace tensorflow_ipu::core {

// Bytes of a chunk, at most; all workers have the same. 0: as tuning.h says.
void SetChunkBytes(std::size_t bytes);
std::size_t ChunkBytes();

// Several chunks are under way at once, so that one travels while another is reduced. No thread waits: what the
// network brings is computed on threads of the executor.
//
// Thread-safe; lives in a shared_ptr.
class CrossHostCollective : public std::enable_shared_from_this<CrossHostCollective> {
 public:
  using Clock = std::chrono::steady_clock;

  // `key` is the same on all workers, and no other collective has it.
  CrossHostCollective(std::string name, std::string key, Packer packer, std::shared_ptr<Network> network,
                      std::shared_ptr<Network::Calls> calls);

  CrossHostCollective(const CrossHostCollective&) = delete;
  CrossHostCollective& operator=(const CrossHostCollective&) = delete;

  // Begins. `done` is called once, on another thread or before this returns; the buffers of the replicas must stay
  // until then. `lost(worker, why)` is called when a message to or from a worker fails; it has to call Fail, here or
  // elsewhere.
  void Start(std::function<void(Outcome)> done, std::function<void(int64_t, Outcome)> lost);

  // Has it end with this, as soon as no thread writes to the buffers any more; unless it has ended.
  void Fail(Outcome why) IPU_EXCLUDES(mutex_);

  // The workers to or from which messages are under way.
  std::vector<int64_t> Awaited() const IPU_EXCLUDES(mutex_);

  // In words: "the collective `x`".
  const std::string& name() const { return name_; }
  Clock::time_point since() const { return since_; }

 private:
  // A chunk that is under way. Its messages are one thread's: that which begins a half, or that which gets its last
  // one.
  struct InFlightChunk {
    std::size_t chunk;
    bool halves;          // Whether it is reduced in two halves; see Packer.
    bool second = false;  // Whether it is in the second one.
    std::shared_ptr<Message> own;
    std::vector<std::shared_ptr<Message>> received;  // By share.
    int64_t pending = 0;                             // Calls of the network. Guarded by the collective's mutex.
  };

  void Next();
  void Begin(const std::shared_ptr<InFlightChunk>& in_flight);
  void BeginSecondHalf(const std::shared_ptr<InFlightChunk>& in_flight);
  void Exchange(const std::shared_ptr<InFlightChunk>& in_flight, std::vector<std::shared_ptr<const Message>> to_send,
                const std::vector<std::size_t>& to_receive);
  void Called(const std::shared_ptr<InFlightChunk>& in_flight, std::size_t share, Outcome outcome) IPU_EXCLUDES(mutex_);
  void Advance(const std::shared_ptr<InFlightChunk>& in_flight);
  void Land(const std::shared_ptr<InFlightChunk>& in_flight) IPU_EXCLUDES(mutex_);

  bool BeginWork() IPU_EXCLUDES(mutex_);
  void EndWork() IPU_EXCLUDES(mutex_);
  void DeliverFailure(Outcome why);

  std::vector<const std::byte*> Received(const InFlightChunk& in_flight) const;
  std::string KeyOf(const InFlightChunk& in_flight, int64_t from) const;

  const std::string name_;
  const std::string key_;
  const Packer packer_;
  const std::shared_ptr<Network> network_;
  const std::shared_ptr<Network::Calls> calls_;
  const std::vector<Chunk> chunks_;
  const Clock::time_point since_ = Clock::now();
  std::function<void(Outcome)> done_;
  std::function<void(int64_t, Outcome)> lost_;

  mutable Mutex mutex_;
  std::size_t begun_ IPU_GUARDED_BY(mutex_) = 0;         // Bundles.
  std::size_t landed_ IPU_GUARDED_BY(mutex_) = 0;        // Likewise.
  std::vector<int64_t> awaited_ IPU_GUARDED_BY(mutex_);  // A share: calls that are under way.
  int64_t working_ IPU_GUARDED_BY(mutex_) = 0;           // Threads that use the buffers of replicas.
  bool failed_ IPU_GUARDED_BY(mutex_) = false;
  bool delivered_ IPU_GUARDED_BY(mutex_) = false;
  Outcome failure_ IPU_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_CROSS_HOST_COLLECTIVE_H_
