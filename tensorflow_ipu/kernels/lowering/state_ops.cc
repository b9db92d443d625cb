// Ops that use a program state: feeds, embeddings, random streams, and the marker of the machine's arithmetic.
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

class InfeedDequeueXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<xla::Shape> results(types_.size());
    for (std::size_t i = 0; i < types_.size(); ++i) {
      OP_REQUIRES_OK(context, tf::TensorShapeToXLAShape(types_[i], shapes_[i], &results[i]));
      OP_REQUIRES_OK(context, RefuseEmpty("infeed", results[i]));
    }
    SetOutputs(context, CallWithState(context, "ipu_infeed_dequeue", {}, results, /*attributes=*/""));
  }

 private:
  const tf::DataTypeVector types_ = tf::GetNodeAttr<tf::DataTypeVector>(def(), "types").value();
  const std::vector<tf::TensorShape> shapes_ = tf::GetNodeAttr<std::vector<tf::TensorShape>>(def(), "shapes").value();
};

REGISTER_XLA_OP(Name("IpuInfeedDequeue").IsMetadataOp(), InfeedDequeueXla);

// `layout` numbers the structure, types and shapes of the element for the host. With `synthetic`, the program declares
// the layout and enqueues nothing.
REGISTER_OP("IpuOutfeedEnqueue")
    .Input("state: resource")
    .Input("element: types")
    .ORDER_INPUT.Attr("types: list(type) >= 1")
    .Attr("layout: int")
    .Attr("synthetic: bool = false")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

class OutfeedEnqueueXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<xla::XlaOp> element = ValuesOf(context);
    for (const xla::XlaOp& value : element) {
      const absl::StatusOr<xla::Shape> shape = context->builder()->GetShape(value);
      OP_REQUIRES_OK(context, shape.status());
      OP_REQUIRES_OK(context, RefuseEmpty("outfeed", *shape));
    }
    if (synthetic_) element.clear();
    CallWithState(context, "ipu_outfeed_enqueue", element, /*results=*/{}, CallAttributes({{"layout", layout_}}));
  }

 private:
  const int64_t layout_ = tf::GetNodeAttr<int64_t>(def(), "layout").value();
  const bool synthetic_ = tf::GetNodeAttr<bool>(def(), "synthetic").value();
};

REGISTER_XLA_OP(Name("IpuOutfeedEnqueue"), OutfeedEnqueueXla);

// `trained` is a scalar whose gradient updates the table; a constant where the table is not trained.
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

// `done` is zero: the gradient of `trained`.
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

class EmbeddingLookupXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    const absl::StatusOr<xla::Shape> indices = context->InputXlaShape(1);
    OP_REQUIRES_OK(context, indices.status());
    xla::Shape rows;
    OP_REQUIRES_OK(context, tf::TensorShapeToXLAShape(context->expected_output_dtype(0),
                                                      tf::TensorShape({indices->dimensions(0), width_}), &rows));
    const std::string attributes = CallAttributes({{"name", NameForMessages(context, "lookup")}});
    SetOutputs(context,
               CallWithState(context, "ipu_embedding_lookup", {context->Input(1)}, {rows}, attributes, options_));
  }

 private:
  const int64_t width_ = tf::GetNodeAttr<int64_t>(def(), "width").value();
  const CallOptions options_{/*in_place=*/false, tf::GetNodeAttr<bool>(def(), "advance").value()};
};

class EmbeddingUpdateXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    xla::Shape done;
    OP_REQUIRES_OK(context, tf::TensorShapeToXLAShape(context->expected_output_dtype(0), tf::TensorShape({}), &done));
    const std::string attributes = CallAttributes({{"learning_rate", learning_rate_},
                                                   {"batches", batches_},
                                                   {"site", site_},
                                                   {"name", NameForMessages(context, absl::StrCat(site_))}});
    SetOutputs(context, CallWithState(context, "ipu_embedding_update", {context->Input(1), context->Input(2)}, {done},
                                      attributes));
  }

 private:
  const float learning_rate_ = tf::GetNodeAttr<float>(def(), "learning_rate").value();
  const int64_t batches_ = tf::GetNodeAttr<int64_t>(def(), "batches").value();
  const int64_t site_ = tf::GetNodeAttr<int64_t>(def(), "site").value();
};

REGISTER_XLA_OP(Name("IpuEmbeddingLookup").IsMetadataOp(), EmbeddingLookupXla);
REGISTER_XLA_OP(Name("IpuEmbeddingUpdate").IsMetadataOp(), EmbeddingUpdateXla);

// Draws a new seed at each use, for TensorFlow's stateless random ops. `advance` is false in the condition of a loop,
// where XLA allows no assignment and the loop keeps the order.
REGISTER_OP("IpuRandomSeed")
    .Input("state: resource")
    .Output("seed: int64")
    .Attr("advance: bool = true")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Vector(2));
      return absl::OkStatus();
    });

// The number of the replica's random stream.
REGISTER_OP("IpuRandomStream")
    .Input("state: resource")
    .Output("stream: int64")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

class RandomSeedXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    const xla::Shape seed = xla::ShapeUtil::MakeShape(xla::S64, {2});
    SetOutputs(context, CallWithState(context, "ipu_random_seed", {}, {seed}, "{}", options_));
  }

 private:
  const CallOptions options_{/*in_place=*/false, tf::GetNodeAttr<bool>(def(), "advance").value()};
};

class RandomStreamXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    const xla::Shape stream = xla::ShapeUtil::MakeShape(xla::S64, {});
    SetOutputs(context, CallWithState(context, "ipu_random_stream", {}, {stream}, "{}", {false, /*advance=*/false}));
  }
};

REGISTER_XLA_OP(Name("IpuRandomSeed").IsMetadataOp(), RandomSeedXla);
REGISTER_XLA_OP(Name("IpuRandomStream").IsMetadataOp(), RandomStreamXla);

// Marks a program that emulates the machine's arithmetic. `options` are those of `precision::Options`. The state is
// that of the random streams.
REGISTER_OP("IpuHalfPrecision")
    .Input("state: resource")
    .Attr("options: string")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

class HalfPrecisionXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    const xla::Shape word = xla::ShapeUtil::MakeShape(xla::U32, {});
    CallWithState(context, precision::kMarker, {}, {word, word, word, word}, CallAttributes({{"options", options_}}));
  }

 private:
  const std::string options_ = tf::GetNodeAttr<std::string>(def(), "options").value();
};

REGISTER_XLA_OP(Name("IpuHalfPrecision").IsMetadataOp(), HalfPrecisionXla);

}  // namespace
}  // namespace tensorflow_ipu
