// What a collective does with the buffers of the replicas that meet in it, in pieces that threads can share.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_EXCHANGE_H_
#define TENSORFLOW_IPU_KERNELS_CORE_EXCHANGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/groups.h"
#include "tensorflow_ipu/kernels/core/outcome.h"
#include "tensorflow_ipu/kernels/core/reduction.h"

namespace tensorflow_ipu::core {

// k replicas meet; in[r] and out[r] are the elements of the one of rank r.
//
//   kAllReduce       out[r] = in[0] + ... + in[k - 1]
//   kAllGather       out[r] = in[0] in[1] ... in[k - 1]
//   kReduceScatter   out[r] = part r of in[0] + ... + in[k - 1], in parts of ceil(n / k) elements, zeros beyond the end
//   kAllToAll        out[r] = part r of in[0], part r of in[1], ..., in parts of n / k elements
//   kBroadcast       out[r] = in[root]
enum class Kind { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast };

// What every replica must say alike at a call site. A plain value.
struct Collective {
  Kind kind = Kind::kAllReduce;
  Reduction reduction = Reduction::kSum;
  Grouping grouping;
  int64_t root = 0;  // A rank.

  bool operator==(const Collective& other) const {
    return kind == other.kind && reduction == other.reduction && grouping == other.grouping && root == other.root;
  }

  // Why so many replicas cannot perform it, or Ok.
  Outcome Check(int64_t replicas) const;
};

// One tensor of one replica. Where a collective keeps the size, `output` may be `input`.
struct Operand {
  DataType type;
  const std::byte* input;
  std::byte* output;
  int64_t count;         // Elements of the input.
  int64_t output_count;  // Likewise.
};

// The operands of one replica.
using Contribution = std::vector<Operand>;

// Why this replica's operands do not suit the collective in a group of so many, or Ok.
Outcome CheckOperands(const Collective& collective, int64_t group_size, const Contribution& contribution);

// Whether the operands of two replicas have the same types and sizes.
bool Match(const Contribution& a, const Contribution& b);

// The work of one collective, cut into pieces that touch different outputs: any thread may do any piece, and
// the result is the same.
//
// DoSome is thread-safe.
class Exchange {
 public:
  // One contribution a replica, by rank; all match.
  Exchange(const Collective& collective, std::vector<Contribution> contributions);

  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int64_t pieces() const { return static_cast<int64_t>(pieces_.size()); }

  // What the replicas contribute, in bytes.
  std::size_t bytes() const { return bytes_; }

  // Takes and does pieces until none is left. Returns true on one thread alone: the one that finishes the last piece,
  // so that the outputs are complete.
  bool DoSome();

 private:
  // Elements `begin` to `end` of one operand: of part `part` where the operand has parts, else of its whole.
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

  // `out` = the reduction of the replicas' elements from `begin` on. `own` is the rank that kLocal keeps.
  void ReduceInto(std::byte* out, std::size_t operand, int64_t begin, int64_t count, std::size_t own) const;

  const Collective collective_;
  const std::vector<Contribution> contributions_;
  std::vector<Piece> pieces_;
  std::size_t bytes_ = 0;
  std::atomic<int64_t> begun_{0};
  std::atomic<int64_t> done_{0};
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_EXCHANGE_H_
