// Cuts, packs and unpacks the data that workers send each other in a collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensorflow_ipu/kernels/core/exchange.h"
#include "tensorflow_ipu/kernels/core/groups.h"

namespace tensorflow_ipu::core {

// A range of one operand, or of each of its parts where the collective has parts.
struct Segment {
  std::size_t operand;
  int64_t begin;
  int64_t end;
};

// Segments that travel together: many small operands, or a piece of a large one.
using Chunk = std::vector<Segment>;

// One collective of a group that spans workers, as one of these sees it. Shares are numbered in the order of workers,
// and sizes are the same for whoever sends and whoever receives.
//
//   kAllReduce       each sends the others what its replicas have, reduced in the type that it accumulates in
//   kReduceScatter   the same, and to each worker the parts of its replicas alone
//   kAllGather       each sends the others what its replicas have
//   kAllToAll        likewise, to each worker the parts of its replicas alone
//   kBroadcast       the worker of the root sends
//
// The result of a reduction is ((x0 + x1) + (x2 + x3)) + ...: a worker's replicas in their order, then the workers.
//
// Not thread-safe for one chunk; different chunks touch different outputs.
class Packer {
 public:
  // `local` has the contributions of share `own`, by rank; all match.
  Packer(const Collective& collective, std::vector<Contribution> local, std::vector<Share> shares, std::size_t own);

  // Cut alike on all workers, so that no message has many more bytes than this.
  std::vector<Chunk> Cut(std::size_t bytes) const;

  std::size_t shares() const { return shares_.size(); }
  std::size_t own() const { return own_; }
  int64_t worker(std::size_t share) const { return shares_[share].worker; }

  // The bytes that one share sends another one.
  std::size_t Bytes(const Chunk& chunk, std::size_t from, std::size_t to) const;

  bool SameForAll() const;

  void Pack(const Chunk& chunk, std::size_t to, std::byte* message) const;

  // Writes the results of the chunk. `messages` has what each share sent (or null), and for reductions what Pack made
  // for the own share.
  void Unpack(const Chunk& chunk, const std::vector<const std::byte*>& messages) const;

  bool InHalves() const { return collective_.kind == Kind::kAllReduce; }

  // An all-reduce of a large chunk has two halves: each worker first reduces a part of each segment from all workers,
  // and then sends the result to all.
  std::size_t PartBytes(const Chunk& chunk, std::size_t part) const;
  void PackPart(const Chunk& chunk, std::size_t part, const std::byte* packed, std::byte* message) const;

  // Reduces the own part from one message of each share.
  std::size_t ReducedBytes(const Chunk& chunk, std::size_t part) const;
  void ReducePart(const Chunk& chunk, const std::vector<const std::byte*>& messages, std::byte* message) const;

  // Writes the results from the reduced parts of all shares.
  void UnpackParts(const Chunk& chunk, const std::vector<const std::byte*>& messages) const;

 private:
  const Operand& First(const Segment& segment) const { return local_.front()[segment.operand]; }
  bool Reduces() const;
  bool HasRoot(const Share& share) const;
  bool KeepsOwn() const;
  void KeepOwn(const Chunk& chunk) const;
  std::size_t TravellingBytes(const Segment& segment) const;  // Of one element.
  int64_t PartLength(int64_t count) const;
  Segment PartOf(const Segment& segment, std::size_t part) const;
  void CopyToReplicas(const Segment& segment) const;  // From the output of the first one.

  std::byte* PackSegment(const Segment& segment, const Share& to, std::byte* at) const;
  void PackReduced(const Segment& segment, int64_t offset, std::byte* at) const;

  const Collective collective_;
  const std::vector<Contribution> local_;
  const std::vector<Share> shares_;
  const std::size_t own_;
  int64_t size_ = 0;  // Of the group.
};

}  // namespace tensorflow_ipu::core
