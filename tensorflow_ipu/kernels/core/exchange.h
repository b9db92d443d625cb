// What a collective does with the replicas' buffers, in pieces that threads can share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tensorflow_ipu/kernels/core/groups.h"
#include "tensorflow_ipu/kernels/core/reduction.h"
#include "tensorflow_ipu/kernels/core/status.h"

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

  Status Check(int64_t replicas) const;
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

Status CheckOperands(const Collective& collective, int64_t group_size, const Contribution& contribution);

bool Match(const Contribution& a, const Contribution& b);

// Copies elements, unless they stay where they are.
inline void Copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

// The work of one collective, in pieces with disjoint outputs that any thread may do. DoSome is thread-safe.
class Exchange {
 public:
  // One matching contribution per replica, by rank.
  Exchange(const Collective& collective, std::vector<Contribution> contributions);

  int64_t pieces() const { return static_cast<int64_t>(pieces_.size()); }

  // Of all replicas.
  std::size_t bytes() const { return bytes_; }

  // Does pieces until none is left. Returns true on the one thread that finishes the last piece.
  bool DoSome();

 private:
  // A range of one operand, or of its part `part` where the collective has parts.
  struct Piece {
    std::size_t operand;
    int64_t part;
    int64_t begin;
    int64_t end;
  };

  void Cut(std::size_t operand, int64_t parts, int64_t length);
  void Do(const Piece& piece) const;
  void AllReduce(const Piece& piece) const;
  void AllGather(const Piece& piece) const;
  void ReduceScatter(const Piece& piece) const;
  void AllToAll(const Piece& piece) const;
  void Broadcast(const Piece& piece) const;

  // `own` is the rank that kLocal keeps.
  void ReduceInto(std::byte* out, std::size_t operand, int64_t begin, int64_t count, std::size_t own) const;

  const Collective collective_;
  const std::vector<Contribution> contributions_;
  std::vector<Piece> pieces_;
  std::size_t bytes_ = 0;
  std::atomic<int64_t> begun_{0};
  std::atomic<int64_t> done_{0};
};

}  // namespace tensorflow_ipu::core
