#include "tensorflow_ipu/kernels/lowering/batch_norm.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow/compiler/tf2xla/xla_helpers.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/tensor_format.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

// What a node says, of either kind.
struct Attributes {
  float epsilon = 0;
  float average_factor = 1;
  bool is_training = true;
  int64_t features = 0;  // The dimension that they are in.
  int64_t samples = 0;   // Of each feature.
};

// Reads them; `images` and `scale` are the numbers of these inputs. False where the node is left to TensorFlow.
bool Read(tf::XlaOpKernelContext* context, int images, int scale, Attributes* attributes) {
  const tf::AttrSlice node(context->op_kernel().def());
  std::string text;
  tf::TensorFormat format;
  if (context->input_type(scale) != tf::DT_FLOAT || !tf::TryGetNodeAttr(node, "epsilon", &attributes->epsilon) ||
      !tf::TryGetNodeAttr(node, "is_training", &attributes->is_training) ||
      !tf::TryGetNodeAttr(node, "data_format", &text) || !tf::FormatFromString(text, &format)) {
    return false;
  }
  tf::TryGetNodeAttr(node, "exponential_avg_factor", &attributes->average_factor);  // A gradient has none.
  const absl::StatusOr<xla::Shape> shape = context->InputXlaShape(images);
  if (!shape.ok() || shape->is_dynamic()) return false;
  attributes->features = tf::GetTensorFeatureDimIndex(static_cast<int>(shape->dimensions().size()), format);
  const int64_t features = shape->dimensions(attributes->features);
  attributes->samples = features > 0 ? xla::ShapeUtil::ElementsIn(*shape) / features : 0;
  return true;
}

// TensorFlow divides by one less than the number of samples where it returns a variance, and nowhere else.
float BesselFactor(int64_t samples) {
  return static_cast<float>(static_cast<double>(samples) / static_cast<double>(std::max<int64_t>(samples - 1, 1)));
}

xla::XlaOp Converted(xla::XlaOp x, xla::PrimitiveType from, xla::PrimitiveType to) {
  return from == to ? x : xla::ConvertElementType(x, to);
}

xla::XlaOp Scaled(xla::XlaOp x, float factor) { return x * xla::ScalarLike(x, factor); }

// The rest of the results are for other devices.
void SetEmpty(tf::XlaOpKernelContext* context, int first) {
  for (int i = first; i < context->num_outputs(); ++i) context->SetConstantOutput(i, tf::Tensor());
}

// Of a gradient whose statistics are constants: { of the images, of the scale, of the offset }
std::vector<xla::XlaOp> OfConstantStatistics(tf::XlaOpKernelContext* context, xla::XlaOp upstream, xla::XlaOp images,
                                             const Attributes& attributes) {
  const xla::XlaOp scale = context->Input(2), mean = context->Input(3), variance = context->Input(4);
  const int64_t features = attributes.features;
  std::vector<int64_t> others;
  const int64_t rank = static_cast<int64_t>(context->InputXlaShape(0)->dimensions().size());
  for (int64_t i = 0; i < rank; ++i) {
    if (i != features) others.push_back(i);
  }
  const xla::XlaOp nothing = xla::ConstantR0<float>(context->builder(), -0.0F);  // See `Sum` in direct_ops.cc.
  const xla::XlaComputation& add = *context->GetOrCreateAdd(tf::DT_FLOAT);
  const xla::XlaOp inverse = xla::Rsqrt(variance + xla::ScalarLike(variance, attributes.epsilon));
  const xla::XlaOp of_images = xla::Mul(upstream, scale * inverse, {features});
  const xla::XlaOp deviations = xla::Sub(images, mean, {features});
  const xla::XlaOp of_scale = inverse * xla::Reduce(upstream * deviations, nothing, add, others);
  return {of_images, of_scale, xla::Reduce(upstream, nothing, add, others)};
}

}  // namespace

bool LowerBatchNorm(tf::XlaOpKernelContext* context) {
  Attributes attributes;
  if (!Read(context, /*images=*/0, /*scale=*/1, &attributes)) return false;
  const xla::PrimitiveType type = context->input_xla_type(0);
  const xla::XlaOp images = Converted(context->Input(0), type, xla::F32);
  const xla::XlaOp scale = context->Input(1), offset = context->Input(2);
  const xla::XlaOp mean = context->Input(3), variance = context->Input(4);
  SetEmpty(context, kBatchNormResults);
  if (!attributes.is_training) {
    const xla::XlaOp result =
        xla::BatchNormInference(images, scale, offset, mean, variance, attributes.epsilon, attributes.features);
    context->SetOutput(0, Converted(result, xla::F32, type));
    for (const int i : {1, 3}) context->SetOutput(i, mean);
    for (const int i : {2, 4}) context->SetOutput(i, variance);
    return true;
  }
  const xla::XlaOp all = xla::BatchNormTraining(images, scale, offset, attributes.epsilon, attributes.features);
  const xla::XlaOp batch_mean = xla::GetTupleElement(all, 1), batch_variance = xla::GetTupleElement(all, 2);
  context->SetOutput(0, Converted(xla::GetTupleElement(all, 0), xla::F32, type));
  const xla::XlaOp corrected = Scaled(batch_variance, BesselFactor(attributes.samples));
  const float factor = attributes.average_factor;
  const bool averaged = factor != 1;
  context->SetOutput(1, averaged ? Scaled(mean, 1 - factor) + Scaled(batch_mean, factor) : batch_mean);
  context->SetOutput(2, averaged ? Scaled(variance, 1 - factor) + Scaled(corrected, factor) : corrected);
  context->SetOutput(3, batch_mean);
  context->SetOutput(4, batch_variance);
  return true;
}

bool LowerBatchNormGradient(tf::XlaOpKernelContext* context) {
  Attributes attributes;
  if (!Read(context, /*images=*/0, /*scale=*/2, &attributes)) return false;
  const xla::PrimitiveType type = context->input_xla_type(0);
  const xla::XlaOp upstream = Converted(context->Input(0), type, xla::F32);
  const xla::XlaOp images = Converted(context->Input(1), type, xla::F32);
  std::vector<xla::XlaOp> results;
  if (attributes.is_training) {
    const xla::XlaOp all = xla::BatchNormGrad(images, context->Input(2), context->Input(3), context->Input(4), upstream,
                                              attributes.epsilon, attributes.features);
    for (int i = 0; i < kBatchNormGradientResults; ++i) results.push_back(xla::GetTupleElement(all, i));
  } else {
    results = OfConstantStatistics(context, upstream, images, attributes);
  }
  context->SetOutput(0, Converted(results[0], xla::F32, type));
  context->SetOutput(1, results[1]);
  context->SetOutput(2, results[2]);
  SetEmpty(context, kBatchNormGradientResults);
  return true;
}

}  // namespace tensorflow_ipu
