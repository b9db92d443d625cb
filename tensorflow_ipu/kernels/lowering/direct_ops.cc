// Operations of layers, lowered straight to XLA, for nodes of programs only.
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tensorflow/compiler/tf2xla/xla_helpers.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/util/tensor_format.h"
#include "tensorflow_ipu/kernels/lowering/program_kernels.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/padding.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

// TensorFlow 2.21 lowers common operations by way of an MLIR module of one operation, which takes 4 ms a node and gives
// the same result. Here they are lowered directly for floating types. `tests/ops/test_direct_ops.py` compares both.

bool IsFloating(tf::DataType type) { return type == tf::DT_FLOAT || type == tf::DT_HALF || type == tf::DT_BFLOAT16; }

class Direct : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) final {
    if (!IsFloating(context->input_type(0))) return LowerAsXla(context);
    context->SetOutput(0, Lowered(context));
  }

 protected:
  virtual xla::XlaOp Lowered(tf::XlaOpKernelContext* context) = 0;
};

// An elementwise operation.
template <xla::XlaOp (*kFunction)(xla::XlaOp)>
class Unary : public Direct {
 public:
  using Direct::Direct;

 protected:
  xla::XlaOp Lowered(tf::XlaOpKernelContext* context) override { return kFunction(context->Input(0)); }
};

xla::XlaOp Cos(xla::XlaOp x) { return xla::Cos(x); }
xla::XlaOp Exp(xla::XlaOp x) { return xla::Exp(x); }
xla::XlaOp Expm1(xla::XlaOp x) { return xla::Expm1(x); }
xla::XlaOp IsNan(xla::XlaOp x) { return xla::Ne(x, x); }
xla::XlaOp Log1p(xla::XlaOp x) { return xla::Log1p(x); }
xla::XlaOp Passed(xla::XlaOp x) { return x; }
xla::XlaOp Reciprocal(xla::XlaOp x) { return xla::ScalarLike(x, 1) / x; }
xla::XlaOp Relu(xla::XlaOp x) { return xla::Max(x, xla::ScalarLike(x, 0)); }
xla::XlaOp Relu6(xla::XlaOp x) { return xla::Clamp(xla::ScalarLike(x, 0), x, xla::ScalarLike(x, 6)); }
xla::XlaOp Rsqrt(xla::XlaOp x) { return xla::Rsqrt(x); }
xla::XlaOp Sigmoid(xla::XlaOp x) { return xla::Logistic(x); }
xla::XlaOp Sqrt(xla::XlaOp x) { return xla::Sqrt(x); }
xla::XlaOp Tanh(xla::XlaOp x) { return xla::Tanh(x); }

class ReluGradient : public Direct {
 public:
  using Direct::Direct;

 protected:
  xla::XlaOp Lowered(tf::XlaOpKernelContext* context) override {
    const xla::XlaOp gradients = context->Input(0), features = context->Input(1);
    return xla::Select(xla::Gt(features, xla::ScalarLike(features, 0)), gradients, xla::ZerosLike(gradients));
  }
};

int64_t Rank(tf::XlaOpKernelContext* context) { return context->InputXlaShape(0)->dimensions().size(); }

// The sum over dimensions, accumulated in the type in which TensorFlow accumulates.
xla::XlaOp Sum(tf::XlaOpKernelContext* context, xla::XlaOp x, absl::Span<const int64_t> dimensions) {
  const tf::DataType type = context->input_type(0);
  const tf::DataType wide = tf::XlaHelpers::SumAccumulationType(type);
  const bool widened = wide != type;
  if (widened) x = tf::XlaHelpers::ConvertElementType(x, wide);
  const xla::PrimitiveType primitive = widened ? xla::F32 : context->input_xla_type(0);
  // Adding negative zero changes no value, not even negative zero.
  const xla::XlaOp begin = xla::ConstantR0WithType(context->builder(), primitive, -0.0);
  const xla::XlaOp sum = xla::Reduce(x, begin, *context->GetOrCreateAdd(wide), dimensions);
  return widened ? tf::XlaHelpers::ConvertElementType(sum, type) : sum;
}

class BiasGradient : public Direct {
 public:
  explicit BiasGradient(tf::OpKernelConstruction* construction) : Direct(construction) {
    std::string format;
    OP_REQUIRES_OK(construction, construction->GetAttr("data_format", &format));
    OP_REQUIRES(construction, tf::FormatFromString(format, &format_), absl::InvalidArgumentError("data_format"));
  }

 protected:
  xla::XlaOp Lowered(tf::XlaOpKernelContext* context) override {
    const int64_t rank = Rank(context);
    const int64_t features = format_ == tf::FORMAT_NCHW ? 1 : rank - 1;
    std::vector<int64_t> dimensions;
    for (int64_t i = 0; i < rank; ++i) {
      if (i != features) dimensions.push_back(i);
    }
    return Sum(context, context->Input(0), dimensions);
  }

 private:
  tf::TensorFormat format_;
};

// Softmax and log-softmax over the last dimension.
class Softmax : public Direct {
 public:
  using Direct::Direct;

 protected:
  xla::XlaOp Lowered(tf::XlaOpKernelContext* context) override {
    const xla::XlaOp logits = context->Input(0);
    const int64_t last = Rank(context) - 1;
    std::vector<int64_t> batch(last);
    std::iota(batch.begin(), batch.end(), 0);
    const tf::DataType type = context->input_type(0);
    const xla::XlaOp largest = xla::Reduce(logits, xla::MinValue(context->builder(), context->input_xla_type(0)),
                                           *context->GetOrCreateMax(type), {last});
    const xla::XlaOp shifted = xla::Sub(logits, largest, batch);
    const xla::XlaOp powers = xla::Exp(shifted);
    const xla::XlaOp sum = Sum(context, powers, {last});
    return type_string() == "Softmax" ? xla::Div(powers, sum, batch) : xla::Sub(shifted, xla::Log(sum), batch);
  }
};

const bool direct_registered =
    RegisterProgramKernel<Unary<xla::Abs>>("Abs") && RegisterProgramKernel<BiasGradient>("BiasAddGrad") &&
    RegisterProgramKernel<Unary<xla::Ceil>>("Ceil") && RegisterProgramKernel<Unary<Cos>>("Cos") &&
    RegisterProgramKernel<Unary<Exp>>("Exp") && RegisterProgramKernel<Unary<Expm1>>("Expm1") &&
    RegisterProgramKernel<Unary<xla::Floor>>("Floor") && RegisterProgramKernel<Unary<xla::IsFinite>>("IsFinite") &&
    RegisterProgramKernel<Unary<IsNan>>("IsNan") && RegisterProgramKernel<Unary<Log1p>>("Log1p") &&
    RegisterProgramKernel<Softmax>("LogSoftmax") && RegisterProgramKernel<Unary<Passed>>("PreventGradient") &&
    RegisterProgramKernel<Unary<Reciprocal>>("Reciprocal") && RegisterProgramKernel<Unary<Relu>>("Relu") &&
    RegisterProgramKernel<Unary<Relu6>>("Relu6") && RegisterProgramKernel<ReluGradient>("ReluGrad") &&
    RegisterProgramKernel<Unary<Rsqrt>>("Rsqrt") && RegisterProgramKernel<Unary<Sigmoid>>("Sigmoid") &&
    RegisterProgramKernel<Unary<xla::Sign>>("Sign") && RegisterProgramKernel<Softmax>("Softmax") &&
    RegisterProgramKernel<Unary<Sqrt>>("Sqrt") && RegisterProgramKernel<Unary<Tanh>>("Tanh");

// `LRN` and `LRNGrad`, local response normalization, for every type: XLA's kernels multiply values of float16 and
// bfloat16 by a sum in float32, which XLA then refuses.
class Normalization : public tf::XlaOpKernel {
 public:
  explicit Normalization(tf::OpKernelConstruction* construction) : XlaOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("depth_radius", &radius_));
    OP_REQUIRES_OK(construction, construction->GetAttr("bias", &bias_));
    OP_REQUIRES_OK(construction, construction->GetAttr("alpha", &alpha_));
    OP_REQUIRES_OK(construction, construction->GetAttr("beta", &beta_));
  }

 protected:
  // All is computed in float32 and rounded once, at the end.
  static xla::XlaOp Input(tf::XlaOpKernelContext* context, int number) {
    return xla::ConvertElementType(context->Input(number), xla::F32);
  }

  static void SetOutput(tf::XlaOpKernelContext* context, xla::XlaOp result) {
    context->SetOutput(0, xla::ConvertElementType(result, context->input_xla_type(0)));
  }

  static xla::XlaOp Scalar(xla::XlaOp like, float value) { return xla::ConstantR0<float>(like.builder(), value); }

  xla::XlaOp SumOfNeighbours(xla::XlaOp values) const {
    return xla::ReduceWindow(values, Scalar(values, 0), xla::CreateScalarAddComputation(xla::F32, values.builder()),
                             {1, 1, 1, 2 * radius_ + 1}, {1, 1, 1, 1}, xla::Padding::kSame);
  }

  // bias + alpha * the sum of the squares
  xla::XlaOp Norm(xla::XlaOp input) const {
    return SumOfNeighbours(input * input) * Scalar(input, alpha_) + Scalar(input, bias_);
  }

  xla::XlaOp ScaleOf(xla::XlaOp norm) const { return xla::Pow(norm, Scalar(norm, -beta_)); }

  // The factor of the derivative of norm^-beta besides its input.
  xla::XlaOp Slope(xla::XlaOp like) const { return Scalar(like, -2 * alpha_ * beta_); }

 private:
  int64_t radius_;
  float bias_, alpha_, beta_;
};

class Forward : public Normalization {
 public:
  using Normalization::Normalization;

  void Compile(tf::XlaOpKernelContext* context) override {
    const xla::XlaOp input = Input(context, 0);
    SetOutput(context, input * ScaleOf(Norm(input)));
  }
};

class Gradient : public Normalization {
 public:
  using Normalization::Normalization;

  void Compile(tf::XlaOpKernelContext* context) override {
    const xla::XlaOp gradients = Input(context, 0), input = Input(context, 1), output = Input(context, 2);
    const xla::XlaOp norm = Norm(input);
    const xla::XlaOp of_others = SumOfNeighbours(output * gradients / norm) * input * Slope(input);
    SetOutput(context, gradients * ScaleOf(norm) + of_others);
  }
};

const bool normalization_registered =
    RegisterProgramKernel<Forward>("LRN") && RegisterProgramKernel<Gradient>("LRNGrad");

}  // namespace
}  // namespace tensorflow_ipu
