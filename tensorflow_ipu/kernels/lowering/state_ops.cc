// Ops that use a state variable: feeds, embeddings, random streams, and the marker of the machine's arithmetic.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "tensorflow_ipu/kernels/lowering/host_kernel.h"
#include "tensorflow_ipu/kernels/precision/rounding.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

REGISTER_OP("IpuInfeedDequeue")
    .Input("state: resource")
    .ORDER_INPUT.Output("element: types")
    .Attr("types: list(type) >= 1")
    .Attr("shapes: list(shape) >= 1")
    .SetIsStateful()
    .SetShapeFn(StatedShapes);

absl::Status LowerInfeedDequeue(tf::XlaOpKernelContext* context) {
  const auto shapes = AttributeOf<std::vector<tf::TensorShape>>(context, "shapes");
  std::vector<xla::Shape> results(shapes.size());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const tf::DataType type = context->expected_output_dtype(static_cast<int>(i));
    TF_RETURN_IF_ERROR(tf::TensorShapeToXLAShape(type, shapes[i], &results[i]));
    TF_RETURN_IF_ERROR(RefuseEmpty("infeed", results[i]));
  }
  return SetOutputs(context, CallWithState(context, "ipu_infeed_dequeue", {}, results));
}

REGISTER_XLA_OP(Name("IpuInfeedDequeue").IsMetadataOp(), Lowering<LowerInfeedDequeue>);

// `layout` identifies the structure, types and shapes of the element for the host. With `synthetic`, the program
// declares the layout and enqueues nothing.
REGISTER_OP("IpuOutfeedEnqueue")
    .Input("state: resource")
    .Input("element: types")
    .ORDER_INPUT.Attr("types: list(type) >= 1")
    .Attr("layout: int")
    .Attr("synthetic: bool = false")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

absl::Status LowerOutfeedEnqueue(tf::XlaOpKernelContext* context) {
  std::vector<xla::XlaOp> element = ValuesOf(context);
  for (const xla::XlaOp value : element) {
    TF_ASSIGN_OR_RETURN(const xla::Shape shape, context->builder()->GetShape(value));
    TF_RETURN_IF_ERROR(RefuseEmpty("outfeed", shape));
  }
  if (AttributeOf<bool>(context, "synthetic")) element.clear();
  const std::string attributes = CallAttributes({{"layout", AttributeOf<int64_t>(context, "layout")}});
  return CallWithState(context, "ipu_outfeed_enqueue", element, /*results=*/{}, attributes).status();
}

REGISTER_XLA_OP(Name("IpuOutfeedEnqueue"), Lowering<LowerOutfeedEnqueue>);

// `trained` is a scalar whose gradient updates the table. It is a constant if the table is not trained.
REGISTER_OP("IpuEmbeddingLookup")
    .Input("state: resource")
    .Input("indices: int32")
    .Input("trained: T")
    .Output("rows: T")
    .Attr("T: {half, float}")
    .Attr("width: int >= 1")
    .Attr("advance: bool = true")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      int64_t width = 0;
      TF_RETURN_IF_ERROR(context->GetAttr("width", &width));
      tf::shape_inference::ShapeHandle indices;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &indices));
      context->set_output(0, context->Matrix(context->Dim(indices, 0), width));
      return absl::OkStatus();
    });

// Updates the table by the gradients of a lookup's rows. `done` is 0, and serves as the gradient of the lookup's
// `trained`.
REGISTER_OP("IpuEmbeddingUpdate")
    .Input("state: resource")
    .Input("indices: int32")
    .Input("gradients: T")
    .Output("done: T")
    .Attr("T: {half, float}")
    .Attr("learning_rate: float")
    .Attr("batches: int >= 1")
    .Attr("site: int")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

absl::Status LowerEmbeddingLookup(tf::XlaOpKernelContext* context) {
  TF_ASSIGN_OR_RETURN(const xla::Shape indices, context->InputXlaShape(1));
  const xla::Shape rows = xla::ShapeUtil::MakeShape(context->input_xla_type(2),
                                                    {indices.dimensions(0), AttributeOf<int64_t>(context, "width")});
  const std::string attributes = CallAttributes({{"name", NameForMessages(context, "lookup")}});
  return SetOutputs(context, CallWithState(context, "ipu_embedding_lookup", {context->Input(1)}, {rows}, attributes));
}

absl::Status LowerEmbeddingUpdate(tf::XlaOpKernelContext* context) {
  const xla::Shape done = xla::ShapeUtil::MakeShape(context->input_xla_type(2), {});
  const auto site = AttributeOf<int64_t>(context, "site");
  const std::string attributes = CallAttributes({{"learning_rate", AttributeOf<float>(context, "learning_rate")},
                                                 {"batches", AttributeOf<int64_t>(context, "batches")},
                                                 {"site", site},
                                                 {"name", NameForMessages(context, absl::StrCat(site))}});
  return SetOutputs(context, CallWithState(context, "ipu_embedding_update", {context->Input(1), context->Input(2)},
                                           {done}, attributes));
}

REGISTER_XLA_OP(Name("IpuEmbeddingLookup").IsMetadataOp(), Lowering<LowerEmbeddingLookup>);
REGISTER_XLA_OP(Name("IpuEmbeddingUpdate").IsMetadataOp(), Lowering<LowerEmbeddingUpdate>);

// Draws a new seed at each use, for TensorFlow's stateless random ops. `advance` is false in the condition of a loop:
// XLA allows no assignment there, and the loop itself keeps the order.
REGISTER_OP("IpuRandomSeed")
    .Input("state: resource")
    .Output("seed: int64")
    .Attr("advance: bool = true")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Vector(2));
      return absl::OkStatus();
    });

// Returns the index of the replica's random stream.
REGISTER_OP("IpuRandomStream")
    .Input("state: resource")
    .Output("stream: int64")
    .Attr("advance: bool = false")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

absl::Status LowerRandomSeed(tf::XlaOpKernelContext* context) {
  return SetOutputs(context, CallWithState(context, "ipu_random_seed", {}, {xla::ShapeUtil::MakeShape(xla::S64, {2})}));
}

absl::Status LowerRandomStream(tf::XlaOpKernelContext* context) {
  return SetOutputs(context,
                    CallWithState(context, "ipu_random_stream", {}, {xla::ShapeUtil::MakeShape(xla::S64, {})}));
}

REGISTER_XLA_OP(Name("IpuRandomSeed").IsMetadataOp(), Lowering<LowerRandomSeed>);
REGISTER_XLA_OP(Name("IpuRandomStream").IsMetadataOp(), Lowering<LowerRandomStream>);

// Marks a program that emulates the machine's arithmetic. `options` is parsed by `precision::Options`. `state` belongs
// to the random streams.
REGISTER_OP("IpuHalfPrecision")
    .Input("state: resource")
    .Attr("options: string")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

absl::Status LowerHalfPrecision(tf::XlaOpKernelContext* context) {
  const xla::Shape word = xla::ShapeUtil::MakeShape(xla::U32, {});
  const std::string attributes = CallAttributes({{"options", AttributeOf<std::string>(context, "options")}});
  return CallWithState(context, precision::kMarker, {}, {word, word, word, word}, attributes).status();
}

REGISTER_XLA_OP(Name("IpuHalfPrecision").IsMetadataOp(), Lowering<LowerHalfPrecision>);

}  // namespace
}  // namespace tensorflow_ipu
