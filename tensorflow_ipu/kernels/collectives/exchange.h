// The data movement and arithmetic of collectives, within one process and between several.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow_ipu/kernels/numerics/reduction.h"
#include "tensorflow_ipu/kernels/support/groups.h"

namespace tensorflow_ipu::core {

// The collectives of k replicas. in[r] and out[r] are the elements of the replica with rank r.
//
//   kAllReduce       out[r] = in[0] + ... + in[k - 1]
//   kAllGather       out[r] = in[0] in[1] ... in[k - 1]
//   kReduceScatter   out[r] = part r of in[0] + ... + in[k - 1], in parts of ceil(n / k) elements, zeros beyond the end
//   kAllToAll        out[r] = part r of in[0], part r of in[1], ..., in parts of n / k elements
//   kBroadcast       out[r] = in[root]
enum class Kind { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast };

// The properties of a collective that must be equal on all replicas at a call site.
struct Collective {
  Kind kind = Kind::kAllReduce;
  Reduction reduction = Reduction::kSum;
  Grouping grouping;
  int64_t root = 0;  // The rank whose tensor is broadcast.

  bool operator==(const Collective& other) const {
    return kind == other.kind && reduction == other.reduction && grouping == other.grouping && root == other.root;
  }

  absl::Status Check(int64_t replicas) const;
};

// One tensor of one replica. `output` may be `input` if both have the same size.
struct Operand {
  DataType type;
  const std::byte* input;
  std::byte* output;
  int64_t count;
  int64_t output_count;
};

using Contribution = std::vector<Operand>;

// Returns the size of the inputs.
std::size_t BytesOf(const Contribution& contribution);

absl::Status CheckOperands(const Collective& collective, int64_t group_size, const Contribution& contribution);

bool Match(const Contribution& a, const Contribution& b);

// Sets the maximum size in bytes of the chunks that workers send each other. It must be the same on all of them. 0: the
// default of tuning.h.
void SetChunkBytes(std::size_t bytes);
std::size_t ChunkBytes();

// A range of the concatenated operands. If `parts` is above 1, only part `part` of that range. If `reduced` is true,
// its messages contain final results instead of inputs or partial results.
struct Chunk {
  int64_t number;
  int64_t part = 0;
  int64_t parts = 1;
  bool reduced = false;
};

struct Ranks {
  int64_t first;
  int64_t last;  // The rank after the last one.
};

// One collective of a group, as seen by one process, cut into chunks with disjoint outputs.
//
// The replicas of a group in one process are a share. Shares are numbered in the order of workers; a group within one
// process has a single share. The `own` share is the share of this process. A rank's result consists of inputs of all
// ranks or of one rank. If the collective reduces, each share first reduces the inputs of its replicas in the
// accumulation type, and the result is the reduction of these partial results. Example: a sum of four shares of two
// replicas is ((x0 + x1) + (x2 + x3)) + ...
//
// Different threads may process different chunks. Inputs of the own share are read directly from the replicas' buffers.
class Exchange {
 public:
  // `local` has the contributions of the share `own`, by rank. They must all match. `shares` is empty if the group is
  // within this process. All workers must use the same `chunk_bytes`.
  Exchange(const Collective& collective, std::vector<Contribution> local, std::vector<Share> shares, std::size_t own,
           std::size_t chunk_bytes = ChunkBytes());

  int64_t chunks() const { return chunks_; }
  std::size_t shares() const { return shares_.size(); }
  std::size_t own() const { return own_; }
  int64_t worker(std::size_t share) const { return shares_[share].worker; }

  // The message of one share to another. A share sends the same message to all other shares, unless each of them
  // receives a different part. In a reduction over several shares, a share sends a message to itself too.
  std::size_t Bytes(const Chunk& chunk, std::size_t from, std::size_t to) const;
  bool SameForAll() const { return !splits_; }
  bool SendsItself() const { return sums_ && shares_.size() > 1; }
  void Pack(const Chunk& chunk, std::size_t to, std::byte* message) const;

  // Returns the ranks of a share that receive different results.
  Ranks Destinations(std::size_t share) const;

  // Writes the results of the ranks `destinations`, which belong to the own share. `messages` has one message per
  // share, or null.
  void Unpack(const Chunk& chunk, const Ranks& destinations, std::vector<const std::byte*> messages) const;

  // Returns true if reducing the chunk in two halves is faster. In the first half, each worker reduces its part of the
  // chunk. In the second half, it sends the result to all other workers.
  bool InHalves(const Chunk& chunk) const;

 private:
  // A range of one operand. If the collective splits or joins parts, the same range of each part.
  struct Segment {
    std::size_t operand;
    DataType type;
    int64_t begin;
    int64_t end;
    int64_t length;             // The number of elements of the operand, or of one part.
    std::size_t element_bytes;  // The size of an element in a buffer.
    std::size_t message_bytes;  // The size of an element in a message.

    std::size_t bytes() const { return static_cast<std::size_t>(end - begin) * message_bytes; }
  };

  template <typename Visit>
  void ForEachSegment(const Chunk& chunk, Visit visit) const;

  // Returns the ranks of the share whose inputs are in the result of `to`. In a reduction, the first rank represents
  // the share's partial result.
  Ranks Sources(const Share& share, int64_t to) const;

  const Contribution& Local(int64_t rank) const { return local_[static_cast<std::size_t>(rank - shares_[own_].first)]; }
  int64_t Length(const Operand& operand) const;
  std::size_t MessageBytes(DataType type) const;
  int64_t Weight(const Operand& operand) const;  // The bytes of one element in the largest message.
  int64_t Extent(int64_t length, int64_t weight) const;
  const std::byte* Input(const Segment& segment, const Contribution& from, int64_t to) const;
  std::byte* Output(const Segment& segment, int64_t from, int64_t to) const;

  // Copies the part of `from`'s input that the result of `to` contains. In a reduction, writes the reduced inputs of
  // the own share instead. Elements beyond the operand's end are 0.
  void Take(const Segment& segment, int64_t from, int64_t to, std::byte* out) const;

  // Writes `data` to the output of `to`, and to all outputs with the same result.
  void Spread(const Segment& segment, int64_t from, int64_t to, const std::byte* data) const;

  Collective collective_;
  std::vector<Contribution> local_;
  std::vector<Share> shares_;
  std::size_t own_;
  int64_t size_ = 0;  // The number of replicas of the group.
  bool splits_;       // The input has a part for each rank.
  bool joins_;        // The output has a part of each rank.
  bool keeps_;        // Each rank's result is its own input.
  bool sums_;
  // The largest number of copies of an element in one message. Within a process, where there are no messages, a larger
  // number means smaller chunks.
  int64_t copies_ = 1;
  int64_t chunk_bytes_;
  int64_t chunks_ = 0;
};

// The work of a collective within one process, shared by several threads.
class LocalExchange {
 public:
  // `contributions` has one matching contribution per replica, by rank.
  LocalExchange(const Collective& collective, std::vector<Contribution> contributions);

  int64_t pieces() const { return exchange_.chunks() * ranks_; }

  // The size of the inputs of all replicas.
  std::size_t bytes() const { return bytes_; }

  // Processes pieces until none is left. A piece is one chunk of the result of one rank. Returns true only on the
  // thread that finishes the last piece. Thread-safe.
  bool DoSome();

 private:
  const std::size_t bytes_;
  const Exchange exchange_;
  const int64_t ranks_;  // The number of ranks that receive different results.
  std::atomic<int64_t> begun_{0};
  std::atomic<int64_t> done_{0};
};

}  // namespace tensorflow_ipu::core
