// Operations of layers that are lowered directly to XLA, in programs only.
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tensorflow/compiler/tf2xla/xla_helpers.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "tensorflow_ipu/kernels/lowering/program_kernels.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/padding.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

// TensorFlow 2.21 lowers common operations by an MLIR module of one operation. That takes 4 ms per node and gives the
// same result. Here they are lowered directly for floating types. `tests/ops/test_direct_ops.py` compares both.

bool IsFloating(tf::DataType type) { return type == tf::DT_FLOAT || type == tf::DT_HALF || type == tf::DT_BFLOAT16; }

using DirectLowering = xla::XlaOp (*)(tf::XlaOpKernelContext* context);

template <DirectLowering kLowering>
class Direct : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    if (!IsFloating(context->input_type(0))) return LowerAsXla(context);
    context->SetOutput(0, kLowering(context));
  }
};

// Lowers an elementwise operation.
template <xla::XlaOp (*kFunction)(xla::XlaOp)>
xla::XlaOp Unary(tf::XlaOpKernelContext* context) {
  return kFunction(context->Input(0));
}

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

xla::XlaOp ReluGradient(tf::XlaOpKernelContext* context) {
  const xla::XlaOp gradients = context->Input(0), features = context->Input(1);
  return xla::Select(xla::Gt(features, xla::ScalarLike(features, 0)), gradients, xla::ZerosLike(gradients));
}

int64_t Rank(tf::XlaOpKernelContext* context) { return context->InputXlaShape(0)->dimensions().size(); }

// Returns the sum over dimensions, with TensorFlow's accumulation type.
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

xla::XlaOp BiasGradient(tf::XlaOpKernelContext* context) {
  const auto format = AttributeOf<std::string>(context, "data_format");
  const int64_t rank = Rank(context);
  const int64_t features = format == "NCHW" ? 1 : rank - 1;
  std::vector<int64_t> dimensions;
  for (int64_t i = 0; i < rank; ++i) {
    if (i != features) dimensions.push_back(i);
  }
  return Sum(context, context->Input(0), dimensions);
}

// Lowers softmax and log-softmax over the last dimension.
xla::XlaOp Softmax(tf::XlaOpKernelContext* context) {
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
  const bool is_log = context->op_kernel().type_string() == "LogSoftmax";
  return is_log ? xla::Sub(shifted, xla::Log(sum), batch) : xla::Div(powers, sum, batch);
}

template <DirectLowering kLowering>
bool RegisterDirect(const char* op) {
  return RegisterProgramKernel<Direct<kLowering>>(op);
}

const bool direct_registered =
    RegisterDirect<Unary<xla::Abs>>("Abs") && RegisterDirect<BiasGradient>("BiasAddGrad") &&
    RegisterDirect<Unary<xla::Ceil>>("Ceil") && RegisterDirect<Unary<Cos>>("Cos") &&
    RegisterDirect<Unary<Exp>>("Exp") && RegisterDirect<Unary<Expm1>>("Expm1") &&
    RegisterDirect<Unary<xla::Floor>>("Floor") && RegisterDirect<Unary<xla::IsFinite>>("IsFinite") &&
    RegisterDirect<Unary<IsNan>>("IsNan") && RegisterDirect<Unary<Log1p>>("Log1p") &&
    RegisterDirect<Softmax>("LogSoftmax") && RegisterDirect<Unary<Passed>>("PreventGradient") &&
    RegisterDirect<Unary<Reciprocal>>("Reciprocal") && RegisterDirect<Unary<Relu>>("Relu") &&
    RegisterDirect<Unary<Relu6>>("Relu6") && RegisterDirect<ReluGradient>("ReluGrad") &&
    RegisterDirect<Unary<Rsqrt>>("Rsqrt") && RegisterDirect<Unary<Sigmoid>>("Sigmoid") &&
    RegisterDirect<Unary<xla::Sign>>("Sign") && RegisterDirect<Softmax>("Softmax") &&
    RegisterDirect<Unary<Sqrt>>("Sqrt") && RegisterDirect<Unary<Tanh>>("Tanh");

// Lowers `LRN` and `LRNGrad`, local response normalization, for every type. XLA's kernels multiply float16 and bfloat16
// values by a sum in float32, which XLA then rejects. Here all is computed in float32 and rounded once, at the end.
absl::Status LowerNormalization(tf::XlaOpKernelContext* context) {
  const auto radius = AttributeOf<int64_t>(context, "depth_radius");
  const auto bias = AttributeOf<float>(context, "bias");
  const auto alpha = AttributeOf<float>(context, "alpha");
  const auto beta = AttributeOf<float>(context, "beta");
  const auto input_of = [&](int index) { return xla::ConvertElementType(context->Input(index), xla::F32); };
  const auto scalar = [&](float value) { return xla::ConstantR0<float>(context->builder(), value); };
  const auto sum_of_neighbours = [&](xla::XlaOp values) {
    return xla::ReduceWindow(values, scalar(0), xla::CreateScalarAddComputation(xla::F32, context->builder()),
                             {1, 1, 1, 2 * radius + 1}, {1, 1, 1, 1}, xla::Padding::kSame);
  };
  const bool forward = context->op_kernel().type_string_view() == "LRN";
  const xla::XlaOp input = input_of(forward ? 0 : 1);
  // bias + alpha * the sum of the squares
  const xla::XlaOp norm = sum_of_neighbours(input * input) * scalar(alpha) + scalar(bias);
  xla::XlaOp result = xla::Pow(norm, scalar(-beta));
  if (forward) {
    result = input * result;
  } else {
    const xla::XlaOp gradients = input_of(0), output = input_of(2);
    // The derivative of norm^-beta is its input times this factor.
    const xla::XlaOp slope = scalar(-2 * alpha * beta);
    result = gradients * result + sum_of_neighbours(output * gradients / norm) * input * slope;
  }
  context->SetOutput(0, xla::ConvertElementType(result, context->input_xla_type(0)));
  return absl::OkStatus();
}

const bool normalization_registered = RegisterProgramKernel<Lowering<LowerNormalization>>("LRN") &&
                                      RegisterProgramKernel<Lowering<LowerNormalization>>("LRNGrad");

}  // namespace
}  // namespace tensorflow_ipu
