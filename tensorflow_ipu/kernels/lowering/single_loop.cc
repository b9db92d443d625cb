#include "tensorflow_ipu/kernels/lowering/single_loop.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/shape.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace {

// What a loop carries ahead of the values: whether it goes on, and `behind`.
struct Head {
  xla::XlaOp goes, behind;
};

xla::XlaOp Packed(const Head& head, const std::vector<xla::XlaOp>& values) {
  std::vector<xla::XlaOp> all = {head.goes, head.behind};
  all.insert(all.end(), values.begin(), values.end());
  return xla::Tuple(head.goes.builder(), all);
}

Head HeadOf(xla::XlaOp all) { return {xla::GetTupleElement(all, 0), xla::GetTupleElement(all, 1)}; }

std::vector<xla::XlaOp> CarriedValues(xla::XlaOp all, std::size_t count) {
  std::vector<xla::XlaOp> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(xla::GetTupleElement(all, 2 + static_cast<int64_t>(i)));
  return values;
}

// Makes what an iteration ends with.
using Next = std::function<Head(xla::XlaBuilder* builder, xla::XlaOp behind)>;

absl::StatusOr<Carried> Loop(const Head& head, const std::vector<xla::XlaOp>& values, const Iteration& iteration,
                             const Next& next) {
  const xla::XlaOp initial = Packed(head, values);
  xla::XlaBuilder* const builder = initial.builder();
  const absl::StatusOr<xla::Shape> shape = builder->GetShape(initial);
  if (!shape.ok()) return shape.status();
  const std::unique_ptr<xla::XlaBuilder> asks = builder->CreateSubBuilder("goes_on");
  const absl::StatusOr<xla::XlaComputation> condition =
      asks->Build(HeadOf(xla::Parameter(asks.get(), 0, *shape, "carried")).goes);
  if (!condition.ok()) return condition.status();
  const std::unique_ptr<xla::XlaBuilder> inside = builder->CreateSubBuilder("once");
  const xla::XlaOp before = xla::Parameter(inside.get(), 0, *shape, "carried");
  const Carried after =
      iteration(inside.get(), {.behind = HeadOf(before).behind, .values = CarriedValues(before, values.size())});
  const absl::StatusOr<xla::XlaComputation> body =
      inside->Build(Packed(next(inside.get(), after.behind), after.values));
  if (!body.ok()) return body.status();
  const xla::XlaOp end = xla::While(*condition, *body, initial);
  return Carried{.behind = HeadOf(end).behind, .values = CarriedValues(end, values.size())};
}

// Whether a loop goes on, as `attributes` says, and `behind` passed on. The custom call hides both from XLA.
Head Step(xla::XlaOp behind, const char* attributes) {
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
  return Loop(Step(begin.behind, "{goes = true}"), begin.values, iteration,
              [](xla::XlaBuilder*, xla::XlaOp behind) { return Step(behind, "{goes = false}"); });
}

absl::StatusOr<Carried> LoopIf(xla::XlaOp runs, const Carried& begin, const Iteration& iteration) {
  return Loop({runs, begin.behind}, begin.values, iteration, [](xla::XlaBuilder* builder, xla::XlaOp behind) {
    return Head{xla::ConstantR0<bool>(builder, false), behind};
  });
}

}  // namespace tensorflow_ipu
