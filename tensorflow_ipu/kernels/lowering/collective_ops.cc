// Collective operations between the replicas of a compiled program. A call takes several values.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/collectives/exchange.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "tensorflow_ipu/kernels/support/program_state.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;
using tf::shape_inference::DimensionHandle;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

namespace {

// Sets the shape of each result by `shape_of(value)`. Input 0 is the state.
template <typename ShapeOf>
absl::Status SetShapes(InferenceContext* c, ShapeOf shape_of) {
  for (int i = 0; i < c->num_outputs(); ++i) {
    ShapeHandle shape;
    TF_RETURN_IF_ERROR(shape_of(c->input(i + 1), &shape));
    c->set_output(i, shape);
  }
  return absl::OkStatus();
}

absl::Status GroupLeads(InferenceContext* c) {
  int64_t size;
  TF_RETURN_IF_ERROR(c->GetAttr("group_size", &size));
  return SetShapes(
      c, [c, size](ShapeHandle value, ShapeHandle* shape) { return c->Concatenate(c->Vector(size), value, shape); });
}

absl::Status Scattered(InferenceContext* c) {
  int64_t size;
  TF_RETURN_IF_ERROR(c->GetAttr("group_size", &size));
  return SetShapes(c, [c, size](ShapeHandle value, ShapeHandle* shape) {
    ShapeHandle vector;
    TF_RETURN_IF_ERROR(c->WithRank(value, 1, &vector));
    const DimensionHandle length = c->Dim(vector, 0);
    *shape = c->Vector(c->ValueKnown(length) ? c->MakeDim((c->Value(length) + size - 1) / size) : c->UnknownDim());
    return absl::OkStatus();
  });
}

}  // namespace

// `state` identifies the call site (see rendezvous.h) and the replica. `group_size` is the number of replicas of a
// group; 0: all replicas of the run. `advance` orders the uses of the state. It is false in the condition of a loop:
// XLA allows no assignment there, and the loop itself keeps the order.
#define COLLECTIVE_OP(name)                                                                                  \
  REGISTER_OP(name)                                                                                          \
      .Input("state: resource")                                                                              \
      .Input("values: T")                                                                                    \
      .ORDER_INPUT.Output("results: T")                                                                      \
      .Attr(                                                                                                 \
          "T: list({bool, half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, " \
          "uint64}) >= 1")                                                                                   \
      .Attr("orthogonal: bool = false")                                                                      \
      .Attr("advance: bool = true")                                                                          \
      .SetIsStateful()
#define REDUCTION "reduction: {'sum', 'mean', 'product', 'min', 'max', 'and', 'or', 'local'} = 'sum'"

COLLECTIVE_OP("IpuAllReduce").Attr(REDUCTION).Attr("group_size: int >= 0 = 0").SetShapeFn(ShapesOfInputs<1>);
COLLECTIVE_OP("IpuAllGather").Attr("group_size: int >= 1").SetShapeFn(GroupLeads);
COLLECTIVE_OP("IpuReduceScatter").Attr(REDUCTION).Attr("group_size: int >= 1").SetShapeFn(Scattered);
// The first axis has a part for each replica of the group.
COLLECTIVE_OP("IpuAllToAll").Attr("group_size: int >= 1").SetShapeFn(ShapesOfInputs<1>);
COLLECTIVE_OP("IpuBroadcast").Attr("root: int >= 0 = 0").Attr("group_size: int >= 0 = 0").SetShapeFn(ShapesOfInputs<1>);

// Returns the index of the replica, or its rank in its group.
REGISTER_OP("IpuReplicaIndex")
    .Input("state: resource")
    .Output("index: int32")
    .Attr("group_size: int >= 0 = 0")
    .Attr("orthogonal: bool = false")
    .SetShapeFn(tf::shape_inference::ScalarShape);

namespace {

// Indexed by `core::Kind` and `core::Reduction`.
constexpr std::array<std::string_view, 5> kKinds = {"IpuAllReduce", "IpuAllGather", "IpuReduceScatter", "IpuAllToAll",
                                                    "IpuBroadcast"};
constexpr std::array<std::string_view, 8> kReductions = {"sum", "mean", "product", "min", "max", "and", "or", "local"};

template <typename Names>
int64_t NumberOf(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) - names.begin();
}

xla::Shape ResultShape(core::Kind kind, int64_t group_size, const xla::Shape& value) {
  if (kind == core::Kind::kAllGather) return xla::ShapeUtil::PrependMajorDimension(group_size, value);
  if (kind != core::Kind::kReduceScatter) return value;
  return xla::ShapeUtil::MakeShape(value.element_type(), {(value.dimensions(0) + group_size - 1) / group_size});
}

absl::Status LowerCollective(tf::XlaOpKernelContext* context) {
  const tf::NodeDef& node = context->op_kernel().def();
  const auto kind = static_cast<core::Kind>(NumberOf(kKinds, node.op()));
  const auto group_size = AttributeOf<int64_t>(context, "group_size");
  std::string reduction = "sum";
  int64_t root = 0;
  tf::TryGetNodeAttr(node, "reduction", &reduction);
  tf::TryGetNodeAttr(node, "root", &root);
  const std::vector<xla::XlaOp> values = ValuesOf(context);
  std::vector<xla::Shape> results;
  for (const xla::XlaOp value : values) {
    TF_ASSIGN_OR_RETURN(const xla::Shape shape, context->builder()->GetShape(value));
    results.push_back(ResultShape(kind, group_size, shape));
  }
  const std::string attributes = CallAttributes({{"kind", static_cast<int64_t>(kind)},
                                                 {"reduction", NumberOf(kReductions, reduction)},
                                                 {"group_size", group_size},
                                                 {"orthogonal", AttributeOf<bool>(context, "orthogonal")},
                                                 {"root", root}});
  // If the results are in place, a single replica copies nothing.
  const bool in_place = kind == core::Kind::kAllReduce || kind == core::Kind::kBroadcast;
  return SetOutputs(context, CallWithState(context, "ipu_collective", values, results, attributes, in_place));
}

REGISTER_XLA_OP(Name("IpuAllReduce").IsMetadataOp(), Lowering<LowerCollective>);
REGISTER_XLA_OP(Name("IpuAllGather").IsMetadataOp(), Lowering<LowerCollective>);
REGISTER_XLA_OP(Name("IpuReduceScatter").IsMetadataOp(), Lowering<LowerCollective>);
REGISTER_XLA_OP(Name("IpuAllToAll").IsMetadataOp(), Lowering<LowerCollective>);
REGISTER_XLA_OP(Name("IpuBroadcast").IsMetadataOp(), Lowering<LowerCollective>);

// The state contains the index, so XLA computes it without a custom call.
absl::Status LowerReplicaIndex(tf::XlaOpKernelContext* context) {
  tf::TensorShape shape;
  xla::XlaOp state;
  TF_RETURN_IF_ERROR(context->ReadVariableInput(0, tf::DT_INT64, &shape, &state));
  const auto element = [&state](std::size_t offset) {
    const int64_t index = static_cast<int64_t>(offset / sizeof(int64_t));
    return xla::Reshape(xla::Slice(state, {index}, {index + 1}, {1}), {});
  };
  xla::XlaOp index = element(offsetof(core::ProgramState, replica));
  if (const auto group_size = AttributeOf<int64_t>(context, "group_size"); group_size > 0) {
    const xla::XlaOp size = xla::ConstantR0<int64_t>(context->builder(), group_size);
    const bool orthogonal = AttributeOf<bool>(context, "orthogonal");
    index = orthogonal ? index / (element(offsetof(core::ProgramState, replicas)) / size) : xla::Rem(index, size);
  }
  context->SetOutput(0, xla::ConvertElementType(index, xla::S32));
  return absl::OkStatus();
}

REGISTER_XLA_OP(Name("IpuReplicaIndex").IsMetadataOp(), Lowering<LowerReplicaIndex>);

}  // namespace
}  // namespace tensorflow_ipu
