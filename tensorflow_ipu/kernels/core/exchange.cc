#include "tensorflow_ipu/kernels/core/exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tensorflow_ipu/kernels/core/tuning.h"

namespace tensorflow_ipu::core {

namespace {

int64_t CeilOf(int64_t count, int64_t parts) { return (count + parts - 1) / parts; }

}  // namespace

Status Collective::Check(int64_t replicas) const {
  if (!grouping.Divides(replicas)) {
    return Status::InvalidArgument("the replica group size (" + std::to_string(grouping.size) +
                                   ") does not divide the number of replicas (" + std::to_string(replicas) +
                                   ") evenly. Use a group size that does, or a device of another number of IPUs.");
  }
  const int64_t size = grouping.size == 0 ? replicas : grouping.size;
  if (root < 0 || root >= size) {
    return Status::InvalidArgument("`root` is " + std::to_string(root) + ", and the ranks of a group of " +
                                   std::to_string(size) + " replicas go from 0 to " + std::to_string(size - 1) + ".");
  }
  return Status::Ok();
}

Status CheckOperands(const Collective& collective, int64_t group_size, const Contribution& contribution) {
  const bool reduces = collective.kind == Kind::kAllReduce || collective.kind == Kind::kReduceScatter;
  for (const Operand& operand : contribution) {
    int64_t output_count = operand.count;
    if (collective.kind == Kind::kAllGather) output_count = operand.count * group_size;
    if (collective.kind == Kind::kReduceScatter) output_count = CeilOf(operand.count, group_size);
    const bool in_parts = collective.kind != Kind::kAllToAll || operand.count % group_size == 0;
    if (operand.output_count != output_count || !in_parts) {
      return Status::InvalidArgument("an operand of " + std::to_string(operand.count) + " elements with a result of " +
                                     std::to_string(operand.output_count) + " does not suit groups of " +
                                     std::to_string(group_size) + " replicas.");
    }
    if (reduces && !Supports(operand.type, collective.reduction)) {
      return Status::InvalidArgument(
          "booleans are reduced by a logical `and` or `or`, and numbers by no logical operation.");
    }
  }
  return Status::Ok();
}

bool Match(const Contribution& a, const Contribution& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Operand& one, const Operand& other) {
    return one.type == other.type && one.count == other.count && one.output_count == other.output_count;
  });
}

Exchange::Exchange(const Collective& collective, std::vector<Contribution> contributions)
    : collective_(collective), contributions_(std::move(contributions)) {
  const int64_t size = static_cast<int64_t>(contributions_.size());
  const Contribution& first = contributions_.front();
  for (std::size_t operand = 0; operand < first.size(); ++operand) {
    const int64_t count = first[operand].count;
    bytes_ += static_cast<std::size_t>(count * size) * SizeOf(first[operand].type);
    const bool whole = collective_.kind == Kind::kAllReduce || collective_.kind == Kind::kBroadcast;
    int64_t length = count;
    if (collective_.kind == Kind::kReduceScatter) length = CeilOf(count, size);
    if (collective_.kind == Kind::kAllToAll) length = count / size;
    Cut(operand, whole ? 1 : size, length);
  }
}

void Exchange::Cut(std::size_t operand, int64_t parts, int64_t length) {
  const int64_t step = kPieceBytes / static_cast<int64_t>(SizeOf(contributions_.front()[operand].type));
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t begin = 0; begin < length; begin += step) {
      pieces_.push_back({operand, part, begin, std::min(begin + step, length)});
    }
  }
}

bool Exchange::DoSome() {
  const int64_t all = pieces();
  if (all == 0) return begun_.fetch_add(1) == 0;
  int64_t did = 0;
  for (int64_t piece = begun_.fetch_add(1); piece < all; piece = begun_.fetch_add(1)) {
    Do(pieces_[piece]);
    ++did;
  }
  // The thread that counts last sees all writes.
  return did > 0 && done_.fetch_add(did) + did == all;
}

void Exchange::Do(const Piece& piece) const {
  constexpr void (Exchange::* kByKind[])(const Piece&) const = {
      &Exchange::AllReduce, &Exchange::AllGather, &Exchange::ReduceScatter, &Exchange::AllToAll, &Exchange::Broadcast};
  (this->*kByKind[static_cast<std::size_t>(collective_.kind)])(piece);
}

void Exchange::AllReduce(const Piece& piece) const {
  const std::size_t bytes = SizeOf(contributions_[0][piece.operand].type);
  const std::size_t offset = static_cast<std::size_t>(piece.begin) * bytes;
  const int64_t count = piece.end - piece.begin;
  if (collective_.reduction == Reduction::kLocal) {
    for (std::size_t rank = 0; rank < contributions_.size(); ++rank) {
      ReduceInto(contributions_[rank][piece.operand].output + offset, piece.operand, piece.begin, count, rank);
    }
    return;
  }
  const std::byte* const reduced = contributions_[0][piece.operand].output + offset;
  ReduceInto(contributions_[0][piece.operand].output + offset, piece.operand, piece.begin, count, 0);
  for (std::size_t rank = 1; rank < contributions_.size(); ++rank) {
    Copy(contributions_[rank][piece.operand].output + offset, reduced, static_cast<std::size_t>(count) * bytes);
  }
}

void Exchange::AllGather(const Piece& piece) const {
  const Operand& from = contributions_[piece.part][piece.operand];
  const std::size_t bytes = SizeOf(from.type);
  const std::size_t offset = static_cast<std::size_t>(piece.begin) * bytes;
  const std::size_t to_offset = static_cast<std::size_t>(piece.part * from.count) * bytes + offset;
  for (const Contribution& to : contributions_) {
    Copy(to[piece.operand].output + to_offset, from.input + offset,
         static_cast<std::size_t>(piece.end - piece.begin) * bytes);
  }
}

void Exchange::ReduceScatter(const Piece& piece) const {
  const Operand& to = contributions_[piece.part][piece.operand];
  const std::size_t bytes = SizeOf(to.type);
  std::byte* const out = to.output + static_cast<std::size_t>(piece.begin) * bytes;
  const int64_t begin = std::min(piece.part * to.output_count + piece.begin, to.count);
  const int64_t end = std::min(piece.part * to.output_count + piece.end, to.count);
  ReduceInto(out, piece.operand, begin, end - begin, static_cast<std::size_t>(piece.part));
  const int64_t padding = (piece.end - piece.begin) - (end - begin);
  std::memset(out + static_cast<std::size_t>(end - begin) * bytes, 0, static_cast<std::size_t>(padding) * bytes);
}

void Exchange::AllToAll(const Piece& piece) const {
  const Operand& from = contributions_[piece.part][piece.operand];
  const std::size_t bytes = SizeOf(from.type);
  const int64_t length = from.count / static_cast<int64_t>(contributions_.size());
  const std::size_t to_offset = static_cast<std::size_t>(piece.part * length + piece.begin) * bytes;
  for (std::size_t rank = 0; rank < contributions_.size(); ++rank) {
    const std::size_t from_offset = static_cast<std::size_t>(static_cast<int64_t>(rank) * length + piece.begin) * bytes;
    Copy(contributions_[rank][piece.operand].output + to_offset, from.input + from_offset,
         static_cast<std::size_t>(piece.end - piece.begin) * bytes);
  }
}

void Exchange::Broadcast(const Piece& piece) const {
  const Operand& from = contributions_[collective_.root][piece.operand];
  const std::size_t bytes = SizeOf(from.type);
  const std::size_t offset = static_cast<std::size_t>(piece.begin) * bytes;
  for (const Contribution& to : contributions_) {
    Copy(to[piece.operand].output + offset, from.input + offset,
         static_cast<std::size_t>(piece.end - piece.begin) * bytes);
  }
}

void Exchange::ReduceInto(std::byte* out, std::size_t operand, int64_t begin, int64_t count, std::size_t own) const {
  const DataType type = contributions_[0][operand].type;
  const std::size_t bytes = SizeOf(type);
  const std::size_t offset = static_cast<std::size_t>(begin) * bytes;
  if (contributions_.size() == 1 || collective_.reduction == Reduction::kLocal) {
    Copy(out, contributions_[own][operand].input + offset, static_cast<std::size_t>(count) * bytes);
    return;
  }
  static thread_local std::vector<const std::byte*> inputs;  // Reused: there are many small collectives.
  inputs.clear();
  for (const Contribution& from : contributions_) inputs.push_back(from[operand].input + offset);
  Reduce(type, collective_.reduction, inputs, count, out);
}

}  // namespace tensorflow_ipu::core
