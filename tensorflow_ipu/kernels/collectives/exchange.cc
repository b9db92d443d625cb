#include "tensorflow_ipu/kernels/collectives/exchange.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "tensorflow_ipu/kernels/collectives/communicator.h"
#include "tensorflow_ipu/kernels/support/tuning.h"

namespace tensorflow_ipu::core {

namespace {

constexpr int64_t kLineBytes = 64;  // The size of a cache line.

std::atomic<std::size_t> set_chunk_bytes{0};

std::size_t Size(int64_t count) { return static_cast<std::size_t>(count); }

int64_t CeilOf(int64_t count, int64_t parts) { return (count + parts - 1) / parts; }

bool Reduces(const Collective& collective) {
  return collective.kind == Kind::kAllReduce || collective.kind == Kind::kReduceScatter;
}

// Copies elements, unless both addresses are the same.
void Copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

absl::Status Collective::Check(int64_t replicas) const {
  if (!grouping.Divides(replicas)) {
    return absl::InvalidArgumentError("the replica group size (" + std::to_string(grouping.size) +
                                      ") does not divide the number of replicas (" + std::to_string(replicas) +
                                      "). Use a group size that does, or a device with another number of IPUs.");
  }
  const int64_t size = grouping.size == 0 ? replicas : grouping.size;
  if (root < 0 || root >= size) {
    return absl::InvalidArgumentError("`root` is " + std::to_string(root) + ", and the ranks of a group of " +
                                      std::to_string(size) + " replicas are 0 to " + std::to_string(size - 1) + ".");
  }
  return absl::OkStatus();
}

std::size_t BytesOf(const Contribution& contribution) {
  std::size_t bytes = 0;
  for (const Operand& operand : contribution) bytes += Size(operand.count) * SizeOf(operand.type);
  return bytes;
}

absl::Status CheckOperands(const Collective& collective, int64_t group_size, const Contribution& contribution) {
  for (const Operand& operand : contribution) {
    int64_t output_count = operand.count;
    if (collective.kind == Kind::kAllGather) output_count = operand.count * group_size;
    if (collective.kind == Kind::kReduceScatter) output_count = CeilOf(operand.count, group_size);
    const bool in_parts = collective.kind != Kind::kAllToAll || operand.count % group_size == 0;
    if (operand.output_count != output_count || !in_parts) {
      return absl::InvalidArgumentError("an operand of " + std::to_string(operand.count) +
                                        " elements with a result of " + std::to_string(operand.output_count) +
                                        " does not fit groups of " + std::to_string(group_size) + " replicas.");
    }
    if (Reduces(collective) && !Supports(operand.type, collective.reduction)) {
      return absl::InvalidArgumentError(
          "booleans must be reduced by a logical `and` or `or`, and numbers by another operation.");
    }
  }
  return absl::OkStatus();
}

bool Match(const Contribution& a, const Contribution& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Operand& left, const Operand& right) {
    return left.type == right.type && left.count == right.count && left.output_count == right.output_count;
  });
}

void SetChunkBytes(std::size_t bytes) { set_chunk_bytes = bytes; }

std::size_t ChunkBytes() {
  const std::size_t bytes = set_chunk_bytes;
  return bytes == 0 ? kChunkBytes : std::min(bytes, Communicator::kMostBytes);
}

Exchange::Exchange(const Collective& collective, std::vector<Contribution> local, std::vector<Share> shares,
                   std::size_t own, std::size_t chunk_bytes)
    : collective_(collective),
      local_(std::move(local)),
      shares_(std::move(shares)),
      own_(own),
      splits_(collective.kind == Kind::kReduceScatter || collective.kind == Kind::kAllToAll),
      joins_(collective.kind == Kind::kAllGather || collective.kind == Kind::kAllToAll),
      chunk_bytes_(static_cast<int64_t>(chunk_bytes)) {
  if (shares_.empty()) shares_.push_back({0, 0, static_cast<int64_t>(local_.size())});
  int64_t largest = 0;
  for (const Share& share : shares_) {
    size_ += share.count;
    largest = std::max(largest, share.count);
  }
  keeps_ = Reduces(collective) && (collective.reduction == Reduction::kLocal || size_ == 1);
  sums_ = Reduces(collective) && !keeps_;
  if (shares_.size() > 1) {
    copies_ = (splits_ ? largest : 1) * (joins_ ? largest : 1);
  } else if (joins_ && !splits_) {
    copies_ = std::clamp<int64_t>(size_ / 2, 1, 2);  // Each replica's output contains all inputs.
  }
  int64_t extent = 0;
  for (const Operand& operand : local_.front()) {
    chunk_bytes_ = std::max(chunk_bytes_, Weight(operand));
    extent += Extent(Length(operand), Weight(operand));
  }
  chunks_ = CeilOf(extent, chunk_bytes_);
}

int64_t Exchange::Length(const Operand& operand) const {
  if (splits_ && joins_) return operand.count / size_;
  return std::min(operand.count, operand.output_count);
}

std::size_t Exchange::MessageBytes(DataType type) const {
  return SizeOf(SendsItself() ? Accumulated(type, collective_.reduction) : type);
}

int64_t Exchange::Weight(const Operand& operand) const {
  return static_cast<int64_t>(MessageBytes(operand.type)) * copies_;
}

// Rounds up to whole cache lines. So the cuts of a large operand fall between lines, whatever the preceding operands
// are.
int64_t Exchange::Extent(int64_t length, int64_t weight) const {
  const int64_t lines = kLineBytes * copies_;
  return CeilOf(length * weight, lines) * lines;
}

template <typename Visit>
void Exchange::ForEachSegment(const Chunk& chunk, Visit visit) const {
  const int64_t first = chunk.number * chunk_bytes_;
  const int64_t last = first + chunk_bytes_;
  int64_t offset = 0;
  for (std::size_t number = 0; number < local_.front().size() && offset < last; ++number) {
    const Operand& operand = local_.front()[number];
    const int64_t length = Length(operand);
    const int64_t weight = Weight(operand);
    const int64_t next = offset + Extent(length, weight);
    if (next > first) {
      const int64_t begin = offset < first ? CeilOf(first - offset, weight) : 0;
      const int64_t count = std::min(length, CeilOf(last - offset, weight)) - begin;
      const std::size_t element_bytes = SizeOf(operand.type);
      const Segment segment{number,
                            operand.type,
                            begin + count * chunk.part / chunk.parts,
                            begin + count * (chunk.part + 1) / chunk.parts,
                            length,
                            element_bytes,
                            chunk.reduced ? element_bytes : MessageBytes(operand.type)};
      if (segment.begin < segment.end) visit(segment);
    }
    offset = next;
  }
}

Ranks Exchange::Destinations(std::size_t of_share) const {
  const Share& share = shares_[of_share];
  return {share.first, share.first + (splits_ || keeps_ ? share.count : 1)};
}

Ranks Exchange::Sources(const Share& share, int64_t to) const {
  if (sums_) return {share.first, share.first + 1};
  if (joins_) return {share.first, share.first + share.count};
  const int64_t source = keeps_ ? to : collective_.root;
  return {std::max(share.first, source), std::min(share.first + share.count, source + 1)};
}

const std::byte* Exchange::Input(const Segment& segment, const Contribution& from, int64_t to) const {
  const Operand& operand = from[segment.operand];
  const int64_t element = segment.begin + (splits_ ? to * segment.length : 0);
  return operand.input + Size(std::min(element, operand.count)) * segment.element_bytes;
}

std::byte* Exchange::Output(const Segment& segment, int64_t from, int64_t to) const {
  const int64_t element = segment.begin + (joins_ ? from * segment.length : 0);
  return Local(to)[segment.operand].output + Size(element) * segment.element_bytes;
}

void Exchange::Take(const Segment& segment, int64_t from, int64_t to, std::byte* out) const {
  if (!Reduces(collective_)) return Copy(out, Input(segment, Local(from), to), segment.bytes());
  const int64_t available = Local(from)[segment.operand].count - (splits_ ? to * segment.length : 0);
  const int64_t count = std::clamp<int64_t>(available - segment.begin, 0, segment.end - segment.begin);
  const std::size_t bytes = Size(count) * segment.message_bytes;
  if (keeps_) {
    Copy(out, Input(segment, Local(from), to), bytes);
  } else {
    static thread_local std::vector<const std::byte*> inputs;  // Reused, because there are many small collectives.
    inputs.clear();
    for (const Contribution& contribution : local_) inputs.push_back(Input(segment, contribution, to));
    (SendsItself() ? ReducePart : Reduce)(segment.type, collective_.reduction, inputs, count, out);
  }
  std::memset(out + bytes, 0, segment.bytes() - bytes);
}

void Exchange::Spread(const Segment& segment, int64_t from, int64_t to, const std::byte* data) const {
  const int64_t end = splits_ || keeps_ ? to + 1 : shares_[own_].first + shares_[own_].count;
  for (; to < end; ++to)
    Copy(Output(segment, from, to), data, Size(segment.end - segment.begin) * segment.element_bytes);
}

std::size_t Exchange::Bytes(const Chunk& chunk, std::size_t from, std::size_t to) const {
  std::size_t copies = 0;
  const Ranks destinations = Destinations(to);
  for (int64_t rank = destinations.first; rank < destinations.last; ++rank) {
    const Ranks sources = Sources(shares_[from], rank);
    copies += Size(std::max<int64_t>(0, sources.last - sources.first));
  }
  std::size_t bytes = 0;
  ForEachSegment(chunk, [&](const Segment& segment) { bytes += copies * segment.bytes(); });
  return bytes;
}

void Exchange::Pack(const Chunk& chunk, std::size_t to_share, std::byte* message) const {
  const Ranks destinations = Destinations(to_share);
  ForEachSegment(chunk, [&](const Segment& segment) {
    for (int64_t to = destinations.first; to < destinations.last; ++to) {
      const Ranks sources = Sources(shares_[own_], to);
      for (int64_t from = sources.first; from < sources.last; ++from, message += segment.bytes()) {
        if (chunk.reduced) {
          Copy(message, Output(segment, from, from), segment.bytes());
        } else {
          Take(segment, from, to, message);
        }
      }
    }
  });
}

void Exchange::Unpack(const Chunk& chunk, const Ranks& destinations, std::vector<const std::byte*> messages) const {
  ForEachSegment(chunk, [&](const Segment& segment) {
    const auto next = [&](std::size_t share) {
      return std::exchange(messages[share], messages[share] + segment.bytes());
    };
    for (int64_t to = destinations.first; to < destinations.last; ++to) {
      if (chunk.reduced) {
        Spread(segment, to, to, next(Size(chunk.part)));
      } else if (Reduces(collective_)) {
        std::byte* const out = Output(segment, to, to);
        if (SendsItself()) {
          ReduceParts(segment.type, collective_.reduction, messages, segment.end - segment.begin, size_, out);
          for (std::size_t share = 0; share < shares_.size(); ++share) next(share);
        } else {
          Take(segment, to, to, out);
        }
        Spread(segment, to, to, out);
      } else {
        for (std::size_t share = 0; share < shares_.size(); ++share) {
          const Ranks sources = Sources(shares_[share], to);
          for (int64_t from = sources.first; from < sources.last; ++from) {
            Spread(segment, from, to, share == own_ ? Input(segment, Local(from), to) : next(share));
          }
        }
      }
    }
  });
}

bool Exchange::InHalves(const Chunk& chunk) const {
  return SendsItself() && !splits_ && shares_.size() > 2 && Bytes(chunk, own_, own_) >= kHalvedBytes;
}

LocalExchange::LocalExchange(const Collective& collective, std::vector<Contribution> contributions)
    : bytes_(BytesOf(contributions.front()) * contributions.size()),
      exchange_(collective, std::move(contributions), {}, 0, kPieceBytes),
      ranks_(exchange_.Destinations(0).last) {}

bool LocalExchange::DoSome() {
  const int64_t all = pieces();
  if (all == 0) return begun_.fetch_add(1) == 0;
  int64_t did = 0;
  for (int64_t piece = begun_.fetch_add(1); piece < all; piece = begun_.fetch_add(1)) {
    const int64_t rank = piece % ranks_;
    exchange_.Unpack({piece / ranks_}, {rank, rank + 1}, {});
    ++did;
  }
  // Only the thread that counts the last piece is sure to see the writes of all threads.
  return did > 0 && done_.fetch_add(did) + did == all;
}

}  // namespace tensorflow_ipu::core
