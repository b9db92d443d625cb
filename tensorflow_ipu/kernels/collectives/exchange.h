// What a collective does with the buffers of replicas, of one process and of several.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow_ipu/kernels/numerics/reduction.h"
#include "tensorflow_ipu/kernels/support/groups.h"

namespace tensorflow_ipu::core {

// k replicas meet; in[r] and out[r] are the elements of the one of rank r.
//
//   kAllReduce       out[r] = in[0] + ... + in[k - 1]
//   kAllGather       out[r] = in[0] in[1] ... in[k - 1]
//   kReduceScatter   out[r] = part r of in[0] + ... + in[k - 1], in parts of ceil(n / k) elements, zeros beyond the end
//   kAllToAll        out[r] = part r of in[0], part r of in[1], ..., in parts of n / k elements
//   kBroadcast       out[r] = in[root]
enum class Kind { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast };

// What all replicas must agree on at a call site.
struct Collective {
  Kind kind = Kind::kAllReduce;
  Reduction reduction = Reduction::kSum;
  Grouping grouping;
  int64_t root = 0;  // A rank.

  bool operator==(const Collective& other) const {
    return kind == other.kind && reduction == other.reduction && grouping == other.grouping && root == other.root;
  }

  absl::Status Check(int64_t replicas) const;
};

// One tensor of one replica. `output` may be `input` where both have one size.
struct Operand {
  DataType type;
  const std::byte* input;
  std::byte* output;
  int64_t count;
  int64_t output_count;
};

using Contribution = std::vector<Operand>;

// Of the inputs.
std::size_t BytesOf(const Contribution& contribution);

absl::Status CheckOperands(const Collective& collective, int64_t group_size, const Contribution& contribution);

bool Match(const Contribution& a, const Contribution& b);

// The largest chunk in bytes of what workers send each other, the same on all of them. 0: the default of tuning.h.
void SetChunkBytes(std::size_t bytes);
std::size_t ChunkBytes();

// A range of the operands, put one after the other; or part `part` of `parts` of it. `reduced`: workers send each other
// its results.
struct Chunk {
  int64_t number;
  int64_t part = 0;
  int64_t parts = 1;
  bool reduced = false;
};

struct Ranks {
  int64_t first;
  int64_t last;  // The one after.
};

// One collective of a group, as one of its processes sees it, in chunks with disjoint outputs. The process has the
// replicas of one share; the shares are numbered in the order of workers, and a group of one process has one alone.
//
// What a rank gets comes from sources: from each rank, or from one; or, of a sum, from each share, which first reduces
// what its replicas have, in the type that it accumulates in: ((x0 + x1) + (x2 + x3)) + ... of two shares or more.
//
// Different threads may do different chunks. A share's own data is read where the replicas have it.
class Exchange {
 public:
  // `local` has the contributions of share `own`, by rank; all match. No shares: the process is alone. All workers cut
  // alike.
  Exchange(const Collective& collective, std::vector<Contribution> local, std::vector<Share> shares, std::size_t own,
           std::size_t chunk_bytes = ChunkBytes());

  int64_t chunks() const { return chunks_; }
  std::size_t shares() const { return shares_.size(); }
  std::size_t own() const { return own_; }
  int64_t worker(std::size_t share) const { return shares_[share].worker; }

  // The message of one share to another, the same for all others unless each gets its part. For a sum of several shares
  // there is one to the own share too.
  std::size_t Bytes(const Chunk& chunk, std::size_t from, std::size_t to) const;
  bool SameForAll() const { return !splits_; }
  bool SendsItself() const { return sums_ && shares_.size() > 1; }
  void Pack(const Chunk& chunk, std::size_t to, std::byte* message) const;

  // The ranks of a share that get different results.
  Ranks Destinations(std::size_t share) const;

  // Writes the results of these ranks of the own share. `messages` are by share, null where there is none.
  void Unpack(const Chunk& chunk, const Ranks& destinations, std::vector<const std::byte*> messages) const;

  // Whether workers do better to sum up a chunk in halves: each unpacks the part of its share, and then sends the
  // result to all.
  bool InHalves(const Chunk& chunk) const;

 private:
  // A range of one operand, or of each of its parts where the collective has parts.
  struct Segment {
    std::size_t operand;
    DataType type;
    int64_t begin;
    int64_t end;
    int64_t length;          // Of the operand, or of its part.
    std::size_t each;        // Bytes of an element.
    std::size_t travelling;  // The same in a message.

    std::size_t bytes() const { return static_cast<std::size_t>(end - begin) * travelling; }
  };

  template <typename Visit>
  void ForEachSegment(const Chunk& chunk, Visit visit) const;

  // The ranks that stand for what the share has for `to`.
  Ranks Sources(const Share& share, int64_t to) const;

  const Contribution& Local(int64_t rank) const { return local_[static_cast<std::size_t>(rank - shares_[own_].first)]; }
  int64_t Length(const Operand& operand) const;
  std::size_t TravellingBytes(DataType type) const;
  int64_t Weight(const Operand& operand) const;  // Of one element: its bytes in the largest message.
  int64_t Extent(int64_t length, int64_t weight) const;
  const std::byte* Input(const Segment& segment, const Contribution& from, int64_t to) const;
  std::byte* Output(const Segment& segment, int64_t from, int64_t to) const;

  // Copies what the source has for `to`, or reduces it. Elements beyond the operand's end are 0.
  void Take(const Segment& segment, int64_t from, int64_t to, std::byte* out) const;

  // Writes it to the output of `to`, and of all whose result is the same.
  void Spread(const Segment& segment, int64_t from, int64_t to, const std::byte* data) const;

  Collective collective_;
  std::vector<Contribution> local_;
  std::vector<Share> shares_;
  std::size_t own_;
  int64_t size_ = 0;  // Of the group.
  bool splits_;       // The input has a part for each rank.
  bool joins_;        // The output has a part of each rank.
  bool keeps_;        // Each rank gets its own.
  bool sums_;
  int64_t copies_ = 1;  // Of an element in a message at most; without messages, how much finer the cuts are.
  int64_t chunk_bytes_;
  int64_t chunks_ = 0;
};

// The work of a collective of one process, which threads share.
class LocalExchange {
 public:
  // One matching contribution per replica, by rank.
  LocalExchange(const Collective& collective, std::vector<Contribution> contributions);

  int64_t pieces() const { return exchange_.chunks() * ranks_; }

  // Of all replicas.
  std::size_t bytes() const { return bytes_; }

  // Does pieces until none is left. Returns true on the one thread that finishes the last piece. Thread-safe.
  bool DoSome();

 private:
  const std::size_t bytes_;
  const Exchange exchange_;
  const int64_t ranks_;  // That get different results.
  std::atomic<int64_t> begun_{0};
  std::atomic<int64_t> done_{0};
};

}  // namespace tensorflow_ipu::core
