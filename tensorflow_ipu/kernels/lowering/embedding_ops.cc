// Ops by which a program reads and updates the rows of a table on the host.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "tensorflow_ipu/kernels/lowering/host_kernel.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

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

namespace {

class EmbeddingLookupXla : public tf::XlaOpKernel {
 public:
  explicit EmbeddingLookupXla(tf::OpKernelConstruction* construction) : XlaOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("width", &width_));
    OP_REQUIRES_OK(construction, construction->GetAttr("advance", &options_.advance));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    const absl::StatusOr<xla::Shape> indices = context->InputXlaShape(1);
    OP_REQUIRES_OK(context, indices.status());
    xla::Shape rows;
    OP_REQUIRES_OK(context, tf::TensorShapeToXLAShape(context->expected_output_dtype(0),
                                                      tf::TensorShape({indices->dimensions(0), width_}), &rows));
    const std::vector<xla::XlaOp> found =
        CallWithState(context, "ipu_embedding_lookup", {context->Input(1)}, {rows},
                      absl::StrCat("{name = ", QuotedAttribute(NameForMessages(context, "lookup")), "}"), options_);
    if (!found.empty()) context->SetOutput(0, found[0]);
  }

 private:
  int64_t width_;
  CallOptions options_;
};

class EmbeddingUpdateXla : public tf::XlaOpKernel {
 public:
  explicit EmbeddingUpdateXla(tf::OpKernelConstruction* construction) : XlaOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("learning_rate", &learning_rate_));
    OP_REQUIRES_OK(construction, construction->GetAttr("batches", &batches_));
    OP_REQUIRES_OK(construction, construction->GetAttr("site", &site_));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    xla::Shape done;
    OP_REQUIRES_OK(context, tf::TensorShapeToXLAShape(context->expected_output_dtype(0), tf::TensorShape({}), &done));
    const std::vector<xla::XlaOp> found = CallWithState(
        context, "ipu_embedding_update", {context->Input(1), context->Input(2)}, {done},
        absl::StrFormat("{learning_rate = %.9e : f32, batches = %d : i64, site = %d : i64, name = %s}", learning_rate_,
                        batches_, site_, QuotedAttribute(NameForMessages(context, absl::StrCat(site_)))));
    if (!found.empty()) context->SetOutput(0, found[0]);
  }

 private:
  float learning_rate_;
  int64_t batches_;
  int64_t site_;
};

REGISTER_XLA_OP(Name("IpuEmbeddingLookup").IsMetadataOp(), EmbeddingLookupXla);
REGISTER_XLA_OP(Name("IpuEmbeddingUpdate").IsMetadataOp(), EmbeddingUpdateXla);

}  // namespace
}  // namespace tensorflow_ipu
