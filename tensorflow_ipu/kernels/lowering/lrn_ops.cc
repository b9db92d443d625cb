// `LRN` and `LRNGrad`, local response normalization, for every type: XLA's kernels multiply values of float16 and
// bfloat16 by a sum in float32, which XLA then refuses.
#include <cstdint>

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow_ipu/kernels/lowering/program_kernels.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/padding.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

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
