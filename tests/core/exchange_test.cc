// Compares the elements that each kind of collective moves, between replicas of one process and of several, with plain
// loops.
#include "tensorflow_ipu/kernels/collectives/exchange.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tensorflow_ipu/kernels/numerics/half.h"
#include "tests/core/threads.h"

namespace {

using namespace tensorflow_ipu::core;

using Rows = std::vector<std::vector<int32_t>>;

Collective Of(Kind kind, Reduction reduction = Reduction::kSum, int64_t group_size = 0, int64_t root = 0) {
  return {kind, reduction, {group_size, /*orthogonal=*/false}, root};
}

Operand OperandOf(const std::vector<int32_t>& input, std::vector<int32_t>& output) {
  return {DataType::kS32, reinterpret_cast<const std::byte*>(input.data()), reinterpret_cast<std::byte*>(output.data()),
          static_cast<int64_t>(input.size()), static_cast<int64_t>(output.size())};
}

Rows Exchanged(const Collective& collective, const Rows& inputs, std::size_t output_count, int threads = 1) {
  Rows outputs(inputs.size(), std::vector<int32_t>(output_count, -1));
  std::vector<Contribution> contributions;
  for (std::size_t r = 0; r < inputs.size(); ++r) contributions.push_back({OperandOf(inputs[r], outputs[r])});
  EXPECT_TRUE(CheckOperands(collective, static_cast<int64_t>(inputs.size()), contributions[0]).ok());
  LocalExchange exchange(collective, contributions);
  std::atomic<int> finishers{0};
  {
    check::Threads crew;
    for (int i = 0; i < threads; ++i) crew.Start([&] { finishers += exchange.DoSome(); });
  }
  EXPECT_EQ(finishers.load(), 1);
  EXPECT_FALSE(exchange.DoSome());
  return outputs;
}

TEST(Exchange, each_kind_moves_its_elements) {
  EXPECT_TRUE((Exchanged({}, {{1, 2}, {10, 20}, {100, 200}}, 2) == Rows{{111, 222}, {111, 222}, {111, 222}}));
  EXPECT_TRUE((Exchanged(Of(Kind::kAllGather), {{1, 2}, {3, 4}}, 4) == Rows{{1, 2, 3, 4}, {1, 2, 3, 4}}));
  EXPECT_TRUE((Exchanged(Of(Kind::kAllToAll), {{1, 2, 3, 4}, {5, 6, 7, 8}}, 4) == Rows{{1, 2, 5, 6}, {3, 4, 7, 8}}));
  EXPECT_TRUE((Exchanged(Of(Kind::kBroadcast, Reduction::kSum, 0, /*root=*/1), {{1, 2}, {3, 4}, {5, 6}}, 2) ==
               Rows{{3, 4}, {3, 4}, {3, 4}}));
}

TEST(Exchange, reduce_scatter_pads_with_zeros) {
  EXPECT_TRUE((Exchanged(Of(Kind::kReduceScatter), {{1, 2, 3}, {10, 20, 30}}, 2) == Rows{{11, 22}, {33, 0}}));
  EXPECT_TRUE((Exchanged(Of(Kind::kReduceScatter), {{1}, {2}, {3}}, 1) == Rows{{6}, {0}, {0}}));
  EXPECT_TRUE((Exchanged(Of(Kind::kReduceScatter), {{}, {}}, 0) == Rows{{}, {}}));
}

TEST(Exchange, local_keeps_the_values_of_the_replica) {
  EXPECT_TRUE(
      (Exchanged(Of(Kind::kReduceScatter, Reduction::kLocal), {{1, 2, 3}, {4, 5, 6}}, 2) == Rows{{1, 2}, {6, 0}}));
  EXPECT_TRUE((Exchanged(Of(Kind::kAllReduce, Reduction::kLocal), {{1, 2}, {4, 5}}, 2) == Rows{{1, 2}, {4, 5}}));
}

TEST(Exchange, a_single_replica_keeps_its_values) {
  for (const Kind kind :
       {Kind::kAllReduce, Kind::kAllGather, Kind::kReduceScatter, Kind::kAllToAll, Kind::kBroadcast}) {
    EXPECT_TRUE((Exchanged(Of(kind, Reduction::kMean), {{1, 2, 3}}, 3) == Rows{{1, 2, 3}}));
  }
}

TEST(Exchange, many_threads_compute_what_one_thread_computes) {
  constexpr std::size_t kCount = 100003;
  Rows inputs;
  for (int32_t r = 0; r < 4; ++r) {
    inputs.emplace_back(kCount);
    std::iota(inputs.back().begin(), inputs.back().end(), r * 1000000);
  }
  const std::size_t part = (kCount + 3) / 4;
  EXPECT_TRUE(Exchanged({}, inputs, kCount, 4) == Exchanged({}, inputs, kCount));
  EXPECT_EQ(Exchanged(Of(Kind::kAllGather), inputs, 4 * kCount, 4),
            Exchanged(Of(Kind::kAllGather), inputs, 4 * kCount));
  EXPECT_EQ(Exchanged(Of(Kind::kReduceScatter), inputs, part, 4), Exchanged(Of(Kind::kReduceScatter), inputs, part));
  for (auto& input : inputs) input.resize(100000);
  EXPECT_EQ(Exchanged(Of(Kind::kAllToAll), inputs, 100000, 4), Exchanged(Of(Kind::kAllToAll), inputs, 100000));
}

// The stored type of a value, and the type in which it is accumulated.
template <typename T, typename Wide = T>
struct Plain {
  using Stored = T;
  using Held = Wide;
  static Held Load(Stored stored) { return static_cast<Held>(stored); }
  static Stored Store(Held held) { return static_cast<Stored>(held); }
};

struct Brain {
  using Stored = uint16_t;
  using Held = float;
  static float Load(uint16_t stored) {
    const uint32_t bits = uint32_t{stored} << 16;
    float held;
    std::memcpy(&held, &bits, sizeof(held));
    return held;
  }
  static uint16_t Store(float held) {
    uint32_t bits;
    std::memcpy(&bits, &held, sizeof(bits));
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};

template <typename Held>
Held Together(Reduction reduction, Held a, Held b) {
  switch (reduction) {
    case Reduction::kProduct:
      return a * b;
    case Reduction::kMin:
    case Reduction::kAnd:
      return std::min(a, b);
    case Reduction::kMax:
    case Reduction::kOr:
      return std::max(a, b);
    default:
      return a + b;
  }
}

// Computes ((x0 + x1) + (x2 + x3)) + ... of the replicas by share.
template <typename Held>
Held Reduced(Reduction reduction, const std::vector<Share>& shares, const std::vector<Held>& values) {
  std::optional<Held> all;
  for (const Share& share : shares) {
    Held own = values[share.first];
    for (int64_t i = 1; i < share.count; ++i) own = Together(reduction, own, values[share.first + i]);
    all = all.has_value() ? Together(reduction, *all, own) : own;
  }
  return reduction == Reduction::kMean ? *all / static_cast<Held>(values.size()) : *all;
}

// Computes an element by the definition of the collective.
template <typename Type>
typename Type::Stored Expected(const Collective& collective, const std::vector<Share>& shares,
                               const std::vector<std::vector<typename Type::Stored>>& inputs, int64_t to, int64_t at) {
  const auto ranks = static_cast<int64_t>(inputs.size());
  const auto count = static_cast<int64_t>(inputs[0].size());
  const int64_t part = (count + ranks - 1) / ranks;
  int64_t element = at;
  switch (collective.kind) {
    case Kind::kAllGather:
      return inputs[at / count][at % count];
    case Kind::kAllToAll:
      return inputs[at / part][to * part + at % part];
    case Kind::kBroadcast:
      return inputs[collective.root][at];
    case Kind::kReduceScatter:
      element += to * part;
      break;
    case Kind::kAllReduce:
      break;
  }
  if (element >= count) return 0;
  if (collective.reduction == Reduction::kLocal || ranks == 1) return inputs[to][element];
  std::vector<typename Type::Held> values;
  for (const auto& input : inputs) values.push_back(Type::Load(input[element]));
  return Type::Store(Reduced(collective.reduction, shares, values));
}

// Processes a chunk like the workers do: all messages are packed before a result is written.
void Deliver(const std::vector<Exchange>& exchanges, int64_t number, bool halves) {
  const std::size_t count = exchanges.size();
  for (const bool second : {false, true}) {
    const auto part = [&](std::size_t share) {
      if (!halves) return Chunk{number};
      return Chunk{number, static_cast<int64_t>(share), static_cast<int64_t>(count), second};
    };
    std::vector<std::vector<std::vector<std::byte>>> messages(count);
    for (std::size_t to = 0; to < count; ++to) {
      for (std::size_t from = 0; from < count; ++from) {
        const Chunk chunk = part(second ? from : to);
        const std::size_t bytes = exchanges[from].Bytes(chunk, from, to);
        EXPECT_EQ(bytes, exchanges[to].Bytes(chunk, from, to));
        messages[to].emplace_back(bytes);
        if (from != to || exchanges[to].SendsItself()) exchanges[from].Pack(chunk, to, messages[to].back().data());
      }
    }
    for (std::size_t to = 0; to < count; ++to) {
      std::vector<const std::byte*> sent;
      for (const auto& message : messages[to]) sent.push_back(message.data());
      for (std::size_t share = 0; share < count; ++share) {
        if ((share == to) != second) exchanges[to].Unpack(part(share), exchanges[to].Destinations(to), sent);
      }
    }
    if (!halves) return;
  }
}

// Compares several operands, some of which fit into one chunk while others span several. Every second chunk is reduced
// in halves.
template <typename Type>
void Compare(const Collective& collective, DataType type, const std::vector<int64_t>& replicas) {
  using Stored = typename Type::Stored;
  std::vector<Share> shares;
  int64_t ranks = 0;
  for (const int64_t of_share : replicas) {
    shares.push_back({static_cast<int64_t>(shares.size()), ranks, of_share});
    ranks += of_share;
  }
  const bool in_place = collective.kind == Kind::kAllReduce || collective.kind == Kind::kBroadcast;
  std::vector<std::vector<std::vector<Stored>>> inputs, outputs;  // By operand and rank.
  std::vector<Contribution> contributions(static_cast<std::size_t>(ranks));
  uint32_t state = 1;
  for (int64_t count : {5, 0, 1, 700, 33}) {
    if (collective.kind == Kind::kAllToAll) count *= ranks;
    int64_t output_count = count;
    if (collective.kind == Kind::kAllGather) output_count *= ranks;
    if (collective.kind == Kind::kReduceScatter) output_count = (count + ranks - 1) / ranks;
    inputs.emplace_back(ranks, std::vector<Stored>(static_cast<std::size_t>(count)));
    for (auto& of_rank : inputs.back()) {
      for (Stored& value : of_rank) {
        state = state * 1664525u + 1013904223u;
        const uint32_t bits = state >> 16;
        if constexpr (std::is_floating_point_v<typename Type::Held>) {
          value = Type::Store(static_cast<typename Type::Held>(bits) / 700 - 40);
        } else {
          value = static_cast<Stored>(type == DataType::kBool ? bits % 2 : bits);
        }
      }
    }
    outputs.push_back(in_place ? inputs.back() : std::vector<std::vector<Stored>>(ranks));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::vector<Stored>& output = outputs.back()[rank];
      output.resize(static_cast<std::size_t>(output_count), Stored{77});
      const void* const input = in_place ? output.data() : inputs.back()[rank].data();
      contributions[rank].push_back({type, static_cast<const std::byte*>(input),
                                     reinterpret_cast<std::byte*>(output.data()), count, output_count});
    }
  }
  EXPECT_TRUE(CheckOperands(collective, ranks, contributions[0]).ok());
  if (shares.size() == 1) {
    EXPECT_TRUE(LocalExchange(collective, contributions).DoSome());
  } else {
    std::vector<Exchange> exchanges;
    for (const Share& share : shares) {
      const auto first = contributions.begin() + share.first;
      exchanges.emplace_back(collective, std::vector<Contribution>(first, first + share.count), shares,
                             static_cast<std::size_t>(share.worker), /*chunk_bytes=*/200);
    }
    EXPECT_TRUE(exchanges[0].chunks() > 1);
    for (int64_t chunk = 0; chunk < exchanges[0].chunks(); ++chunk) {
      const bool may = exchanges[0].SendsItself() && exchanges[0].SameForAll();
      Deliver(exchanges, chunk, may && chunk % 2 == 1);
    }
  }
  for (std::size_t operand = 0; operand < outputs.size(); ++operand) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const std::vector<Stored>& output = outputs[operand][rank];
      std::vector<Stored> expected;
      for (std::size_t at = 0; at < output.size(); ++at) {
        expected.push_back(Expected<Type>(collective, shares, inputs[operand], rank, static_cast<int64_t>(at)));
      }
      EXPECT_EQ(output, expected);
    }
  }
}

template <typename Type>
void CompareAll(DataType type, const std::vector<Reduction>& reductions) {
  const std::vector<std::vector<int64_t>> groups = {{1},    {2},    {5},       {1, 1},    {2, 2},
                                                    {1, 2}, {3, 1}, {1, 1, 1}, {2, 1, 3}, {1, 2, 2, 2, 1}};
  for (const auto& replicas : groups) {
    const int64_t ranks = std::accumulate(replicas.begin(), replicas.end(), int64_t{0});
    for (const Kind kind : {Kind::kAllReduce, Kind::kReduceScatter}) {
      for (const Reduction reduction : reductions) Compare<Type>(Of(kind, reduction), type, replicas);
    }
    const Reduction any = reductions.front();
    for (const Kind kind : {Kind::kAllGather, Kind::kAllToAll}) Compare<Type>(Of(kind, any), type, replicas);
    for (const int64_t root : {int64_t{0}, ranks / 2}) {
      Compare<Type>(Of(Kind::kBroadcast, any, 0, root), type, replicas);
    }
  }
}

TEST(Exchange, results_equal_the_definition_to_the_bit_in_one_process_and_in_several) {
  const std::vector<Reduction> all = {Reduction::kSum, Reduction::kMean, Reduction::kProduct,
                                      Reduction::kMin, Reduction::kMax,  Reduction::kLocal};
  CompareAll<Plain<float>>(DataType::kF32, all);
  CompareAll<Plain<double>>(DataType::kF64, all);
  CompareAll<F16>(DataType::kF16, all);
  CompareAll<Brain>(DataType::kBF16, all);
  CompareAll<Plain<uint8_t, uint64_t>>(DataType::kU8, all);
  CompareAll<Plain<int64_t, int64_t>>(DataType::kS64, {Reduction::kSum, Reduction::kMean, Reduction::kLocal});
  CompareAll<Plain<uint8_t>>(DataType::kBool, {Reduction::kAnd, Reduction::kOr, Reduction::kLocal});
}

TEST(Exchange, operands_of_many_types_and_sizes_are_exchanged_at_once) {
  const std::vector<int32_t> numbers = {1, 2, 3};
  const std::vector<double> doubles = {0.5};
  std::vector<std::vector<int32_t>> sums(2, std::vector<int32_t>(3));
  std::vector<std::vector<double>> double_sums(2, std::vector<double>(1));
  std::vector<Contribution> contributions;
  for (int r = 0; r < 2; ++r) {
    contributions.push_back({OperandOf(numbers, sums[r]),
                             {DataType::kF64, reinterpret_cast<const std::byte*>(doubles.data()),
                              reinterpret_cast<std::byte*>(double_sums[r].data()), 1, 1}});
  }
  EXPECT_TRUE(LocalExchange({}, contributions).DoSome());
  EXPECT_TRUE((sums == Rows{{2, 4, 6}, {2, 4, 6}}));
  EXPECT_EQ(double_sums[1][0], 1.0);
}

TEST(Exchange, operands_that_do_not_fit_are_rejected) {
  std::vector<int32_t> three(3);
  std::vector<int32_t> six(6);
  EXPECT_TRUE(CheckOperands(Of(Kind::kAllGather), 2, {OperandOf(three, six)}).ok());
  EXPECT_TRUE(CheckOperands(Of(Kind::kAllGather), 3, {OperandOf(three, six)}).code() ==
              absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(CheckOperands(Of(Kind::kAllToAll), 2, {OperandOf(three, three)}).code() ==
              absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(CheckOperands(Of(Kind::kAllReduce, Reduction::kAnd), 2, {OperandOf(three, three)}).code() ==
              absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Of(Kind::kAllReduce, Reduction::kSum, 3).Check(6).ok());
  EXPECT_EQ(Of(Kind::kAllReduce, Reduction::kSum, 3).Check(4).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Of(Kind::kBroadcast, Reduction::kSum, 2, /*root=*/2).Check(4).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Match({OperandOf(three, six)}, {OperandOf(three, six)}));
  EXPECT_FALSE(Match({OperandOf(three, six)}, {OperandOf(six, six)}));
  EXPECT_FALSE(Match({OperandOf(three, six)}, {}));
}

}  // namespace
