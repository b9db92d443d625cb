#include "tensorflow_ipu/kernels/lowering/single_loop.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/shape.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace {

// What loops carry ahead of the values: of one loop whether it goes on, and `behind`; of the other a count
// and its end.
struct Pair {
  xla::XlaOp first, second;
};

xla::XlaOp Packed(const Pair& head, const std::vector<xla::XlaOp>& values) {
  std::vector<xla::XlaOp> all = {head.first, head.second};
  all.insert(all.end(), values.begin(), values.end());
  return xla::Tuple(head.first.builder(), all);
}

Pair HeadOf(xla::XlaOp all) { return {xla::GetTupleElement(all, 0), xla::GetTupleElement(all, 1)}; }

std::vector<xla::XlaOp> CarriedValues(xla::XlaOp all, std::size_t count) {
  std::vector<xla::XlaOp> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(xla::GetTupleElement(all, 2 + static_cast<int64_t>(i)));
  return values;
}

// A loop: what it carries as it begins; whether it goes on; one iteration.
absl::StatusOr<xla::XlaOp> Loop(xla::XlaOp initial, const std::function<xla::XlaOp(const Pair& head)>& goes,
                                const std::function<xla::XlaOp(xla::XlaBuilder* builder, xla::XlaOp all)>& iteration) {
  xla::XlaBuilder* const builder = initial.builder();
  const absl::StatusOr<xla::Shape> shape = builder->GetShape(initial);
  if (!shape.ok()) return shape.status();
  const std::unique_ptr<xla::XlaBuilder> asks = builder->CreateSubBuilder("goes_on");
  const xla::XlaOp answer = goes(HeadOf(xla::Parameter(asks.get(), 0, *shape, "carried")));
  const absl::StatusOr<xla::XlaComputation> condition = asks->Build(answer);
  if (!condition.ok()) return condition.status();
  const std::unique_ptr<xla::XlaBuilder> inside = builder->CreateSubBuilder("once");
  const xla::XlaOp next = iteration(inside.get(), xla::Parameter(inside.get(), 0, *shape, "carried"));
  const absl::StatusOr<xla::XlaComputation> body = inside->Build(next);
  if (!body.ok()) return body.status();
  return xla::While(*condition, *body, initial);
}

// Whether a loop goes on, and `behind` again: as `attributes` says, which XLA does not read.
Pair Step(xla::XlaOp behind, const char* attributes) {
  const xla::Shape number = xla::ShapeUtil::MakeShape(xla::S32, {});
  const xla::Shape both = xla::ShapeUtil::MakeTupleShape({xla::ShapeUtil::MakeShape(xla::PRED, {}), number});
  return HeadOf(xla::CustomCallWithLayout(behind.builder(), "ipu_fence", {behind}, both, {number}, attributes,
                                          /*has_side_effect=*/false, /*output_operand_aliasing=*/{},
                                          /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
                                          xla::CustomCallApiVersion::API_VERSION_TYPED_FFI));
}

}  // namespace

std::vector<xla::XlaOp> Barred(const std::vector<xla::XlaOp>& values) {
  const xla::XlaOp barred = xla::OptimizationBarrier(xla::Tuple(values.front().builder(), values));
  std::vector<xla::XlaOp> found;
  for (std::size_t i = 0; i < values.size(); ++i) {
    found.push_back(xla::GetTupleElement(barred, static_cast<int64_t>(i)));
  }
  return found;
}

absl::StatusOr<Carried> SingleLoop(const Carried& begin, const Iteration& iteration) {
  const std::size_t count = begin.values.size();
  const absl::StatusOr<xla::XlaOp> end = Loop(
      Packed(Step(begin.behind, "{goes = true}"), begin.values), [](const Pair& head) { return head.first; },
      [&](xla::XlaBuilder* builder, xla::XlaOp all) {
        const Carried next = iteration(builder, {.behind = HeadOf(all).second, .values = CarriedValues(all, count)});
        return Packed(Step(next.behind, "{goes = false}"), next.values);
      });
  if (!end.ok()) return end.status();
  return Carried{.behind = HeadOf(*end).second, .values = CarriedValues(*end, count)};
}

absl::StatusOr<Carried> LoopUnless(xla::XlaOp skipped, xla::XlaOp zero, const Carried& begin,
                                   const Iteration& iteration) {
  const std::size_t count = begin.values.size();
  const absl::StatusOr<xla::XlaOp> end = Loop(
      Packed({begin.behind + skipped, zero}, begin.values),
      [](const Pair& head) { return xla::Le(head.first, head.second); },
      [&](xla::XlaBuilder* builder, xla::XlaOp all) {
        const Pair head = HeadOf(all);
        const Carried next = iteration(builder, {.behind = head.first, .values = CarriedValues(all, count)});
        return Packed({next.behind + xla::One(builder, xla::S32), head.second}, next.values);
      });
  if (!end.ok()) return end.status();
  const xla::XlaOp passed = HeadOf(*end).first - xla::One(begin.behind.builder(), xla::S32);
  return Carried{.behind = passed, .values = CarriedValues(*end, count)};
}

}  // namespace tensorflow_ipu
