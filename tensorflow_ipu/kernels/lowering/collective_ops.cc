// Collective operations of the replicas of a compiled program, on several values a call.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/core/exchange.h"
#include "tensorflow_ipu/kernels/core/program_state.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
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

absl::Status Exchanged(InferenceContext* c) {
  int64_t size;
  int64_t split;
  int64_t concat;
  TF_RETURN_IF_ERROR(c->GetAttr("group_size", &size));
  TF_RETURN_IF_ERROR(c->GetAttr("split_dimension", &split));
  TF_RETURN_IF_ERROR(c->GetAttr("concat_dimension", &concat));
  return SetShapes(c, [=](ShapeHandle value, ShapeHandle* shape) {
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(value, std::max(split, concat) + 1, &value));
    *shape = value;
    if (!c->RankKnown(value)) return absl::OkStatus();
    DimensionHandle dimension;
    TF_RETURN_IF_ERROR(c->Divide(c->Dim(*shape, split), size, /*evenly_divisible=*/true, &dimension));
    TF_RETURN_IF_ERROR(c->ReplaceDim(*shape, split, dimension, shape));
    TF_RETURN_IF_ERROR(c->Multiply(c->Dim(*shape, concat), size, &dimension));
    return c->ReplaceDim(*shape, concat, dimension, shape);
  });
}

}  // namespace

// `state` names the call site (see rendezvous.h) and the replica. `group_size` replicas are a group; 0 stands for all
// replicas of the run. `advance` keeps uses of the state in order; it is false in the condition of a loop, where XLA
// allows no assignment and the loop keeps the order.
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
COLLECTIVE_OP("IpuAllToAll")
    .Attr("split_dimension: int >= 0")
    .Attr("concat_dimension: int >= 0")
    .Attr("group_size: int >= 1")
    .SetShapeFn(Exchanged);
COLLECTIVE_OP("IpuBroadcast").Attr("root: int >= 0 = 0").Attr("group_size: int >= 0 = 0").SetShapeFn(ShapesOfInputs<1>);

// The index of the replica, or its rank in its group.
REGISTER_OP("IpuReplicaIndex")
    .Input("state: resource")
    .Output("index: int32")
    .Attr("group_size: int >= 0 = 0")
    .Attr("orthogonal: bool = false")
    .SetShapeFn(tf::shape_inference::ScalarShape);

namespace {

core::Kind KindOf(const std::string& op) {
  static const auto* const kinds =
      new std::map<std::string, core::Kind>{{"IpuAllReduce", core::Kind::kAllReduce},
                                            {"IpuAllGather", core::Kind::kAllGather},
                                            {"IpuReduceScatter", core::Kind::kReduceScatter},
                                            {"IpuAllToAll", core::Kind::kAllToAll},
                                            {"IpuBroadcast", core::Kind::kBroadcast}};
  return kinds->at(op);
}

core::Reduction ReductionOf(const tf::NodeDef& node) {
  static const auto* const reductions = new std::map<std::string, core::Reduction>{
      {"sum", core::Reduction::kSum}, {"mean", core::Reduction::kMean},  {"product", core::Reduction::kProduct},
      {"min", core::Reduction::kMin}, {"max", core::Reduction::kMax},    {"and", core::Reduction::kAnd},
      {"or", core::Reduction::kOr},   {"local", core::Reduction::kLocal}};
  std::string name = "sum";
  tf::TryGetNodeAttr(node, "reduction", &name);
  return reductions->at(name);  // The op checks the name.
}

class CollectiveXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<xla::XlaOp> values = ValuesOf(context);
    std::vector<xla::Shape> shapes;
    int64_t root = 0;
    tf::TryGetNodeAttr(def(), "root", &root);
    for (xla::XlaOp& value : values) {
      const absl::StatusOr<xla::Shape> shape = context->builder()->GetShape(value);
      OP_REQUIRES_OK(context, shape.status());
      value = Sent(value, *shape);
      shapes.push_back(ReceivedShape(*shape));
    }
    const std::string attributes = CallAttributes({{"kind", static_cast<int64_t>(kind_)},
                                                   {"reduction", static_cast<int64_t>(ReductionOf(def()))},
                                                   {"group_size", group_size_},
                                                   {"orthogonal", orthogonal_},
                                                   {"root", root}});
    const std::vector<xla::XlaOp> received =
        CallWithState(context, "ipu_collective", values, shapes, attributes, options_);
    for (std::size_t i = 0; i < received.size(); ++i) {
      context->SetOutput(static_cast<int>(i), Result(received[i], shapes[i]));
    }
  }

 protected:
  // The operand of the custom call for a value, the shape of its result, and the output made of that result.
  virtual xla::XlaOp Sent(xla::XlaOp value, const xla::Shape&) const { return value; }
  virtual xla::Shape ReceivedShape(const xla::Shape& value) const {
    if (kind_ == core::Kind::kAllGather) return xla::ShapeUtil::PrependMajorDimension(group_size_, value);
    if (kind_ != core::Kind::kReduceScatter) return value;
    return xla::ShapeUtil::MakeShape(value.element_type(), {(value.dimensions(0) + group_size_ - 1) / group_size_});
  }
  virtual xla::XlaOp Result(xla::XlaOp received, const xla::Shape&) const { return received; }

  const int64_t group_size_ = tf::GetNodeAttr<int64_t>(def(), "group_size").value();

 private:
  const core::Kind kind_ = KindOf(type_string());
  const bool orthogonal_ = tf::GetNodeAttr<bool>(def(), "orthogonal").value();
  // A single replica has nothing to copy if the results are in place.
  const CallOptions options_{/*in_place=*/kind_ == core::Kind::kAllReduce || kind_ == core::Kind::kBroadcast,
                             tf::GetNodeAttr<bool>(def(), "advance").value()};
};

// The custom call exchanges contiguous parts, so XLA transposes them to the front and back again.
class AllToAllXla : public CollectiveXla {
 public:
  using CollectiveXla::CollectiveXla;

 protected:
  // [..., n, ...] to [k, ..., n / k, ...].
  xla::XlaOp Sent(xla::XlaOp value, const xla::Shape& shape) const override {
    std::vector<int64_t> parts(shape.dimensions().begin(), shape.dimensions().end());
    parts[split_] /= group_size_;
    parts.insert(parts.begin() + split_, group_size_);
    std::vector<int64_t> order = {split_};
    for (int64_t i = 0; i < static_cast<int64_t>(parts.size()); ++i) {
      if (i != split_) order.push_back(i);
    }
    return xla::Transpose(xla::Reshape(value, parts), order);
  }

  xla::Shape ReceivedShape(const xla::Shape& value) const override {
    std::vector<int64_t> dimensions(value.dimensions().begin(), value.dimensions().end());
    dimensions[split_] /= group_size_;
    dimensions.insert(dimensions.begin(), group_size_);
    return xla::ShapeUtil::MakeShape(value.element_type(), dimensions);
  }

  // [k, ..., m, ...] to [..., k * m, ...].
  xla::XlaOp Result(xla::XlaOp received, const xla::Shape& shape) const override {
    std::vector<int64_t> order;
    std::vector<int64_t> dimensions;
    for (int64_t i = 1; i < static_cast<int64_t>(shape.dimensions().size()); ++i) {
      if (i == concat_ + 1) order.push_back(0);
      order.push_back(i);
      dimensions.push_back(shape.dimensions(i) * (i == concat_ + 1 ? group_size_ : 1));
    }
    return xla::Reshape(xla::Transpose(received, order), dimensions);
  }

 private:
  const int64_t split_ = tf::GetNodeAttr<int64_t>(def(), "split_dimension").value();
  const int64_t concat_ = tf::GetNodeAttr<int64_t>(def(), "concat_dimension").value();
};

REGISTER_XLA_OP(Name("IpuAllReduce").IsMetadataOp(), CollectiveXla);
REGISTER_XLA_OP(Name("IpuAllGather").IsMetadataOp(), CollectiveXla);
REGISTER_XLA_OP(Name("IpuReduceScatter").IsMetadataOp(), CollectiveXla);
REGISTER_XLA_OP(Name("IpuAllToAll").IsMetadataOp(), AllToAllXla);
REGISTER_XLA_OP(Name("IpuBroadcast").IsMetadataOp(), CollectiveXla);

// The state holds the index, so XLA computes it without a custom call.
class ReplicaIndexXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    tf::TensorShape shape;
    xla::XlaOp state;
    OP_REQUIRES_OK(context, context->ReadVariableInput(0, tf::DT_INT64, &shape, &state));
    const auto element = [&state](std::size_t offset) {
      const int64_t at = static_cast<int64_t>(offset / sizeof(int64_t));
      return xla::Reshape(xla::Slice(state, {at}, {at + 1}, {1}), {});
    };
    xla::XlaOp index = element(offsetof(core::ProgramState, replica));
    if (group_size_ > 0) {
      const xla::XlaOp size = xla::ConstantR0<int64_t>(context->builder(), group_size_);
      index = orthogonal_ ? index / (element(offsetof(core::ProgramState, replicas)) / size) : xla::Rem(index, size);
    }
    context->SetOutput(0, xla::ConvertElementType(index, xla::S32));
  }

 private:
  const int64_t group_size_ = tf::GetNodeAttr<int64_t>(def(), "group_size").value();
  const bool orthogonal_ = tf::GetNodeAttr<bool>(def(), "orthogonal").value();
};

REGISTER_XLA_OP(Name("IpuReplicaIndex").IsMetadataOp(), ReplicaIndexXla);

}  // namespace
}  // namespace tensorflow_ipu
