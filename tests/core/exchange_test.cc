// The elements that each kind of collective moves, whoever does the pieces.
#include "tensorflow_ipu/kernels/core/exchange.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/core/check.h"
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
  CHECK(CheckOperands(collective, static_cast<int64_t>(inputs.size()), contributions[0]).ok());
  LocalExchange exchange(collective, contributions);
  std::atomic<int> finishers{0};
  {
    check::Threads crew;
    for (int i = 0; i < threads; ++i) crew.Start([&] { finishers += exchange.DoSome(); });
  }
  CHECK_EQ(finishers.load(), 1);
  CHECK(!exchange.DoSome());
  return outputs;
}

TEST(each_kind_moves_its_elements) {
  CHECK((Exchanged({}, {{1, 2}, {10, 20}, {100, 200}}, 2) == Rows{{111, 222}, {111, 222}, {111, 222}}));
  CHECK((Exchanged(Of(Kind::kAllGather), {{1, 2}, {3, 4}}, 4) == Rows{{1, 2, 3, 4}, {1, 2, 3, 4}}));
  CHECK((Exchanged(Of(Kind::kAllToAll), {{1, 2, 3, 4}, {5, 6, 7, 8}}, 4) == Rows{{1, 2, 5, 6}, {3, 4, 7, 8}}));
  CHECK((Exchanged(Of(Kind::kBroadcast, Reduction::kSum, 0, /*root=*/1), {{1, 2}, {3, 4}, {5, 6}}, 2) ==
         Rows{{3, 4}, {3, 4}, {3, 4}}));
}

TEST(reduce_scatter_fills_up_with_zeros) {
  CHECK((Exchanged(Of(Kind::kReduceScatter), {{1, 2, 3}, {10, 20, 30}}, 2) == Rows{{11, 22}, {33, 0}}));
  CHECK((Exchanged(Of(Kind::kReduceScatter), {{1}, {2}, {3}}, 1) == Rows{{6}, {0}, {0}}));
  CHECK((Exchanged(Of(Kind::kReduceScatter), {{}, {}}, 0) == Rows{{}, {}}));
}

TEST(local_keeps_what_is_the_replicas_own) {
  CHECK((Exchanged(Of(Kind::kReduceScatter, Reduction::kLocal), {{1, 2, 3}, {4, 5, 6}}, 2) == Rows{{1, 2}, {6, 0}}));
  CHECK((Exchanged(Of(Kind::kAllReduce, Reduction::kLocal), {{1, 2}, {4, 5}}, 2) == Rows{{1, 2}, {4, 5}}));
}

TEST(a_replica_that_is_alone_keeps_what_it_has) {
  for (const Kind kind :
       {Kind::kAllReduce, Kind::kAllGather, Kind::kReduceScatter, Kind::kAllToAll, Kind::kBroadcast}) {
    CHECK((Exchanged(Of(kind, Reduction::kMean), {{1, 2, 3}}, 3) == Rows{{1, 2, 3}}));
  }
}

TEST(many_threads_do_what_one_does) {
  constexpr std::size_t kCount = 100003;
  Rows inputs;
  for (int32_t r = 0; r < 4; ++r) {
    inputs.emplace_back(kCount);
    std::iota(inputs.back().begin(), inputs.back().end(), r * 1000000);
  }
  const std::size_t part = (kCount + 3) / 4;
  CHECK(Exchanged({}, inputs, kCount, 4) == Exchanged({}, inputs, kCount));
  CHECK(Exchanged(Of(Kind::kAllGather), inputs, 4 * kCount, 4) == Exchanged(Of(Kind::kAllGather), inputs, 4 * kCount));
  CHECK(Exchanged(Of(Kind::kReduceScatter), inputs, part, 4) == Exchanged(Of(Kind::kReduceScatter), inputs, part));
  for (auto& input : inputs) input.resize(100000);
  CHECK(Exchanged(Of(Kind::kAllToAll), inputs, 100000, 4) == Exchanged(Of(Kind::kAllToAll), inputs, 100000));
}

TEST(results_may_take_the_place_of_inputs) {
  for (const Kind kind : {Kind::kAllReduce, Kind::kBroadcast}) {
    Rows values = {std::vector<int32_t>(20000, 1), std::vector<int32_t>(20000, 10)};
    std::vector<Contribution> contributions;
    for (auto& row : values) contributions.push_back({OperandOf(row, row)});
    LocalExchange exchange(Of(kind), contributions);
    CHECK(exchange.DoSome());
    const std::vector<int32_t> expected(20000, kind == Kind::kAllReduce ? 11 : 1);
    CHECK((values == Rows{expected, expected}));
  }
}

TEST(operands_of_many_types_and_sizes_are_exchanged_at_once) {
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
  CHECK(LocalExchange({}, contributions).DoSome());
  CHECK((sums == Rows{{2, 4, 6}, {2, 4, 6}}));
  CHECK_EQ(double_sums[1][0], 1.0);
}

TEST(what_does_not_suit_is_refused) {
  std::vector<int32_t> three(3);
  std::vector<int32_t> six(6);
  CHECK(CheckOperands(Of(Kind::kAllGather), 2, {OperandOf(three, six)}).ok());
  CHECK(CheckOperands(Of(Kind::kAllGather), 3, {OperandOf(three, six)}).code == Code::kInvalidArgument);
  CHECK(CheckOperands(Of(Kind::kAllToAll), 2, {OperandOf(three, three)}).code == Code::kInvalidArgument);
  CHECK(CheckOperands(Of(Kind::kAllReduce, Reduction::kAnd), 2, {OperandOf(three, three)}).code ==
        Code::kInvalidArgument);
  CHECK(Of(Kind::kAllReduce, Reduction::kSum, 3).Check(6).ok());
  CHECK(Of(Kind::kAllReduce, Reduction::kSum, 3).Check(4).code == Code::kInvalidArgument);
  CHECK(Of(Kind::kBroadcast, Reduction::kSum, 2, /*root=*/2).Check(4).code == Code::kInvalidArgument);
  CHECK(Match({OperandOf(three, six)}, {OperandOf(three, six)}));
  CHECK(!Match({OperandOf(three, six)}, {OperandOf(six, six)}));
  CHECK(!Match({OperandOf(three, six)}, {}));
}

}  // namespace
