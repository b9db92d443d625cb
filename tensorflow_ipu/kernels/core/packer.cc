#include "tensorflow_ipu/kernels/core/packer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tensorflow_ipu::core {

namespace {

std::size_t Size(int64_t count) { return static_cast<std::size_t>(count); }

}  // namespace

Packer::Packer(const Collective& collective, std::vector<Contribution> local, std::vector<Share> shares,
               std::size_t own)
    : collective_(collective), local_(std::move(local)), shares_(std::move(shares)), own_(own) {
  for (const Share& share : shares_) size_ += share.count;
}

bool Packer::Reduces() const {
  return collective_.kind == Kind::kAllReduce || collective_.kind == Kind::kReduceScatter;
}

bool Packer::HasRoot(const Share& share) const {
  return share.first <= collective_.root && collective_.root < share.first + share.count;
}

bool Packer::KeepsOwn() const { return Reduces() && collective_.reduction == Reduction::kLocal; }

bool Packer::SameForAll() const {
  return collective_.kind != Kind::kReduceScatter && collective_.kind != Kind::kAllToAll;
}

std::size_t Packer::TravellingBytes(const Segment& segment) const {
  const DataType type = First(segment).type;
  return SizeOf(Reduces() ? Accumulated(type, collective_.reduction) : type);
}

int64_t Packer::PartLength(int64_t count) const { return (count + size_ - 1) / size_; }

std::vector<Chunk> Packer::Cut(std::size_t bytes) const {
  int64_t most = 0;
  for (const Share& share : shares_) most = std::max(most, share.count);
  int64_t copies = 1;  // Of an element in a message at most.
  if (collective_.kind == Kind::kAllGather || collective_.kind == Kind::kReduceScatter) copies = most;
  if (collective_.kind == Kind::kAllToAll) copies = most * most;
  std::vector<Chunk> chunks;
  std::size_t room = 0;
  for (std::size_t operand = 0; operand < local_.front().size(); ++operand) {
    const int64_t length = SameForAll() ? local_.front()[operand].count : PartLength(local_.front()[operand].count);
    const std::size_t each = TravellingBytes({operand, 0, 0}) * Size(copies);
    for (int64_t begin = 0; begin < length;) {
      if (room < each) {
        chunks.emplace_back();
        room = std::max(bytes, each);
      }
      const int64_t end = std::min(length, begin + static_cast<int64_t>(room / each));
      chunks.back().push_back({operand, begin, end});
      room -= Size(end - begin) * each;
      begin = end;
    }
  }
  return chunks;
}

std::size_t Packer::Bytes(const Chunk& chunk, std::size_t from, std::size_t to) const {
  if (KeepsOwn()) return 0;
  const Kind kind = collective_.kind;
  int64_t copies = 1;
  if (kind == Kind::kAllGather || kind == Kind::kAllToAll) copies *= shares_[from].count;
  if (kind == Kind::kReduceScatter || kind == Kind::kAllToAll) copies *= shares_[to].count;
  if (kind == Kind::kBroadcast && !HasRoot(shares_[from])) copies = 0;
  std::size_t bytes = 0;
  for (const Segment& segment : chunk) bytes += TravellingBytes(segment) * Size((segment.end - segment.begin) * copies);
  return bytes;
}

void Packer::Pack(const Chunk& chunk, std::size_t to, std::byte* message) const {
  for (const Segment& segment : chunk) message = PackSegment(segment, shares_[to], message);
}

std::byte* Packer::PackSegment(const Segment& segment, const Share& to, std::byte* at) const {
  const int64_t length = segment.end - segment.begin;
  const std::size_t each = TravellingBytes(segment);
  const std::size_t bytes = Size(length) * each;
  const int64_t part = PartLength(First(segment).count);
  switch (collective_.kind) {
    case Kind::kAllReduce:
      PackReduced(segment, 0, at);
      return at + bytes;
    case Kind::kReduceScatter:
      for (int64_t rank = to.first; rank < to.first + to.count; ++rank, at += bytes) {
        PackReduced(segment, rank * part, at);
      }
      return at;
    case Kind::kAllGather:
      for (const Contribution& from : local_) {
        Copy(at, from[segment.operand].input + Size(segment.begin) * each, bytes);
        at += bytes;
      }
      return at;
    case Kind::kAllToAll:
      for (const Contribution& from : local_) {
        for (int64_t rank = to.first; rank < to.first + to.count; ++rank, at += bytes) {
          Copy(at, from[segment.operand].input + Size(rank * part + segment.begin) * each, bytes);
        }
      }
      return at;
    case Kind::kBroadcast: {
      const Contribution& root = local_[Size(collective_.root - shares_[own_].first)];
      Copy(at, root[segment.operand].input + Size(segment.begin) * each, bytes);
      return at + bytes;
    }
  }
  return at;
}

// Elements beyond the operand's end are 0.
void Packer::PackReduced(const Segment& segment, int64_t offset, std::byte* at) const {
  const Operand& first = First(segment);
  const int64_t begin = std::min(first.count, segment.begin + offset);
  const int64_t end = std::min(first.count, segment.end + offset);
  std::vector<const std::byte*> inputs;
  inputs.reserve(local_.size());
  for (const Contribution& from : local_) {
    inputs.push_back(from[segment.operand].input + Size(begin) * SizeOf(first.type));
  }
  core::ReducePart(first.type, collective_.reduction, inputs, end - begin, at);
  const std::size_t each = TravellingBytes(segment);
  std::memset(at + Size(end - begin) * each, 0, Size((segment.end - segment.begin) - (end - begin)) * each);
}

void Packer::CopyToReplicas(const Segment& segment) const {
  const std::size_t each = SizeOf(First(segment).type);
  const std::size_t offset = Size(segment.begin) * each;
  for (std::size_t replica = 1; replica < local_.size(); ++replica) {
    Copy(local_[replica][segment.operand].output + offset, First(segment).output + offset,
         Size(segment.end - segment.begin) * each);
  }
}

void Packer::KeepOwn(const Chunk& chunk) const {
  for (const Segment& segment : chunk) {
    const int64_t count = First(segment).count;
    const std::size_t each = SizeOf(First(segment).type);
    for (std::size_t replica = 0; replica < local_.size(); ++replica) {
      const Operand& operand = local_[replica][segment.operand];
      const int64_t rank = shares_[own_].first + static_cast<int64_t>(replica);
      const int64_t offset = collective_.kind == Kind::kReduceScatter ? rank * PartLength(count) : 0;
      const int64_t begin = std::min(count, offset + segment.begin);
      const int64_t end = std::min(count, offset + segment.end);
      std::byte* const to = operand.output + Size(segment.begin) * each;
      Copy(to, operand.input + Size(begin) * each, Size(end - begin) * each);
      std::memset(to + Size(end - begin) * each, 0, Size(segment.end - segment.begin - (end - begin)) * each);
    }
  }
}

void Packer::Unpack(const Chunk& chunk, const std::vector<const std::byte*>& messages) const {
  if (KeepsOwn()) return KeepOwn(chunk);
  std::vector<const std::byte*> at = messages;
  for (const Segment& segment : chunk) {
    const Operand& first = First(segment);
    const int64_t length = segment.end - segment.begin;
    const std::size_t each = SizeOf(first.type);
    const std::size_t bytes = Size(length) * each;
    const std::size_t travelled = Size(length) * TravellingBytes(segment);
    const int64_t part = PartLength(first.count);
    const auto input = [&](int64_t replica, int64_t element) {
      return local_[Size(replica)][segment.operand].input + Size(element) * each;
    };
    // The next data of a share: of its message, or what `own` returns.
    const auto next = [&](std::size_t share, auto own) {
      return share == own_ ? own() : std::exchange(at[share], at[share] + bytes);
    };
    switch (collective_.kind) {
      case Kind::kAllReduce:
        ReduceParts(first.type, collective_.reduction, at, length, size_, first.output + Size(segment.begin) * each);
        for (const std::byte*& from : at) from += travelled;
        CopyToReplicas(segment);
        break;
      case Kind::kReduceScatter:
        for (const Contribution& to : local_) {
          ReduceParts(first.type, collective_.reduction, at, length, size_,
                      to[segment.operand].output + Size(segment.begin) * each);
          for (const std::byte*& from : at) from += travelled;
        }
        break;
      case Kind::kAllGather:
        for (std::size_t share = 0; share < shares_.size(); ++share) {
          for (int64_t i = 0; i < shares_[share].count; ++i) {
            const std::byte* const from = next(share, [&] { return input(i, segment.begin); });
            const std::size_t offset = Size((shares_[share].first + i) * first.count + segment.begin) * each;
            for (const Contribution& to : local_) Copy(to[segment.operand].output + offset, from, bytes);
          }
        }
        break;
      case Kind::kAllToAll:
        for (std::size_t share = 0; share < shares_.size(); ++share) {
          for (int64_t i = 0; i < shares_[share].count; ++i) {
            const std::size_t offset = Size((shares_[share].first + i) * part + segment.begin) * each;
            for (std::size_t to = 0; to < local_.size(); ++to) {
              const int64_t rank = shares_[own_].first + static_cast<int64_t>(to);
              Copy(local_[to][segment.operand].output + offset,
                   next(share, [&] { return input(i, rank * part + segment.begin); }), bytes);
            }
          }
        }
        break;
      case Kind::kBroadcast:
        for (std::size_t share = 0; share < shares_.size(); ++share) {
          if (!HasRoot(shares_[share])) continue;
          const int64_t rank = collective_.root - shares_[share].first;
          const std::byte* const from = next(share, [&] { return input(rank, segment.begin); });
          for (const Contribution& to : local_) {
            Copy(to[segment.operand].output + Size(segment.begin) * each, from, bytes);
          }
        }
        break;
    }
  }
}

Segment Packer::PartOf(const Segment& segment, std::size_t part) const {
  const int64_t length = segment.end - segment.begin;
  const int64_t count = static_cast<int64_t>(shares_.size());
  const int64_t number = static_cast<int64_t>(part);
  return {segment.operand, segment.begin + length * number / count, segment.begin + length * (number + 1) / count};
}

std::size_t Packer::PartBytes(const Chunk& chunk, std::size_t part) const {
  std::size_t bytes = 0;
  for (const Segment& segment : chunk) {
    const Segment own = PartOf(segment, part);
    bytes += Size(own.end - own.begin) * TravellingBytes(segment);
  }
  return bytes;
}

void Packer::PackPart(const Chunk& chunk, std::size_t part, const std::byte* packed, std::byte* message) const {
  for (const Segment& segment : chunk) {
    const std::size_t each = TravellingBytes(segment);
    const Segment own = PartOf(segment, part);
    const std::size_t bytes = Size(own.end - own.begin) * each;
    Copy(message, packed + Size(own.begin - segment.begin) * each, bytes);
    message += bytes;
    packed += Size(segment.end - segment.begin) * each;
  }
}

std::size_t Packer::ReducedBytes(const Chunk& chunk, std::size_t part) const {
  std::size_t bytes = 0;
  for (const Segment& segment : chunk) {
    const Segment own = PartOf(segment, part);
    bytes += Size(own.end - own.begin) * SizeOf(First(segment).type);
  }
  return bytes;
}

void Packer::ReducePart(const Chunk& chunk, const std::vector<const std::byte*>& messages, std::byte* message) const {
  std::vector<const std::byte*> at = messages;
  for (const Segment& segment : chunk) {
    const Segment own = PartOf(segment, own_);
    const int64_t length = own.end - own.begin;
    const DataType type = First(segment).type;
    ReduceParts(type, collective_.reduction, at, length, size_, message);
    for (const std::byte*& from : at) from += Size(length) * TravellingBytes(segment);
    message += Size(length) * SizeOf(type);
  }
}

void Packer::UnpackParts(const Chunk& chunk, const std::vector<const std::byte*>& messages) const {
  std::vector<const std::byte*> at = messages;
  for (const Segment& segment : chunk) {
    const std::size_t each = SizeOf(First(segment).type);
    for (std::size_t share = 0; share < shares_.size(); ++share) {
      const Segment part = PartOf(segment, share);
      const std::size_t bytes = Size(part.end - part.begin) * each;
      Copy(First(segment).output + Size(part.begin) * each, at[share], bytes);
      at[share] += bytes;
    }
    CopyToReplicas(segment);
  }
}

}  // namespace tensorflow_ipu::core
