// The layers that programs compute by host kernels: convolutions, poolings, batch normalization, random numbers; and
// checks, which XLA drops. Only nodes of programs use these kernels. They fall back to XLA's lowering where the host
// kernel does not support the node or is not faster.
#include "tensorflow_ipu/kernels/lowering/host_layers.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/rng_alg.h"
#include "tensorflow_ipu/kernels/lowering/assertion.h"
#include "tensorflow_ipu/kernels/lowering/host_choice.h"
#include "tensorflow_ipu/kernels/lowering/host_kernel.h"
#include "tensorflow_ipu/kernels/lowering/pointwise.h"
#include "tensorflow_ipu/kernels/lowering/program_kernels.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

using Suits = bool (*)(tf::XlaOpKernelContext*, const tf::AttrSlice&);
using Faster = bool (*)(const Lowered&);

constexpr int kAll = std::numeric_limits<int>::max();
// The other results of a `FusedBatchNorm` are for other devices.
constexpr int kBatchNormResults = 5, kBatchNormGradientResults = 3;

bool Always(tf::XlaOpKernelContext*, const tf::AttrSlice&) { return true; }

// Whether the channels come last, which is the only data format of the host's kernels.
bool ChannelsLast(const tf::AttrSlice& node) {
  std::string format;
  return !tf::TryGetNodeAttr(node, "data_format", &format) || format == "NHWC" || format == "NDHWC";
}

bool Undilated(const tf::AttrSlice& node) {
  std::vector<int64_t> dilations;
  return !tf::TryGetNodeAttr(node, "dilations", &dilations) ||
         std::all_of(dilations.begin(), dilations.end(), [](int64_t dilation) { return dilation == 1; });
}

bool Pooling(tf::XlaOpKernelContext*, const tf::AttrSlice& node) {
  std::string padding;
  return ChannelsLast(node) && tf::TryGetNodeAttr(node, "padding", &padding) && padding != "EXPLICIT";
}

bool Convolution(tf::XlaOpKernelContext*, const tf::AttrSlice& node) { return ChannelsLast(node); }

bool BatchNorm(tf::XlaOpKernelContext*, const tf::AttrSlice& node) { return ChannelsLast(node); }

// The host's kernels support dilations only in plain forward convolutions.
bool UndilatedConvolution(tf::XlaOpKernelContext*, const tf::AttrSlice& node) {
  return ChannelsLast(node) && Undilated(node);
}

// Whether a draw is by Philox, or by the device's default algorithm, which is Philox on the host.
bool Philox(tf::XlaOpKernelContext* context, const tf::AttrSlice&) {
  constexpr int kAlgorithm = 3;  // The index of the algorithm input, in all such ops.
  int64_t algorithm = 0;
  const absl::Status known = context->ConstantInputAsIntScalar(kAlgorithm, &algorithm);
  return known.ok() && (algorithm == tf::RNG_ALG_PHILOX || algorithm == tf::RNG_ALG_AUTO_SELECT);
}

// The op that returns the device's default algorithm.
constexpr char kAlgorithmOfDevice[] = "StatelessRandomGetAlg";

// The host's kernels have no gradients of grouped convolutions; XLA does.
bool GradientOfInput(tf::XlaOpKernelContext* context, const tf::AttrSlice& node) {
  tf::TensorShape inputs;
  const absl::StatusOr<xla::Shape> filter = context->InputXlaShape(1);
  return UndilatedConvolution(context, node) && filter.ok() && context->ConstantInputAsShape(0, &inputs).ok() &&
         inputs.dim_size(inputs.dims() - 1) == filter->dimensions(filter->dimensions().size() - 2);
}

bool GradientOfFilter(tf::XlaOpKernelContext* context, const tf::AttrSlice& node) {
  tf::TensorShape filter;
  const absl::StatusOr<xla::Shape> inputs = context->InputXlaShape(0);
  return UndilatedConvolution(context, node) && inputs.ok() && context->ConstantInputAsShape(1, &filter).ok() &&
         inputs->dimensions().back() == filter.dim_size(filter.dims() - 2);
}

// Checks that end a run. XLA drops them.
constexpr char kAssert[] = "Assert";
constexpr char kCheckNumerics[] = "CheckNumerics";
constexpr char kCheckNumericsV2[] = "CheckNumericsV2";

// XLA has no lowering of it.
constexpr char kNearestGradient[] = "ResizeNearestNeighborGrad";

struct Layer {
  const char* op;
  Suits suits;                   // Whether the host's kernel can compute the node.
  Faster faster = AlwaysFaster;  // Whether it is faster than XLA's code.
  int results = kAll;            // How many of the results hold something; the rest are empty.
};

constexpr Layer kLayers[] = {
    {kAssert, Always},
    {"AvgPool", Pooling, FasterWhereOverlapping},
    {"AvgPool3D", Pooling, FasterWhereOverlapping},
    {"AvgPool3DGrad", Pooling, FasterWhereOverlapping},
    {"AvgPoolGrad", Pooling, FasterWhereOverlapping},
    {kCheckNumerics, Always},
    {kCheckNumericsV2, Always},
    {"Conv2D", Convolution, FasterConvolution},
    {"Conv2DBackpropFilter", GradientOfFilter, FasterGradient},
    {"Conv2DBackpropInput", GradientOfInput, FasterGradient},
    {"Conv3D", UndilatedConvolution, FasterConvolution},
    {"Conv3DBackpropFilterV2", GradientOfFilter, FasterGradient},
    {"Conv3DBackpropInputV2", GradientOfInput, FasterGradient},
    {"DepthwiseConv2dNative", UndilatedConvolution},
    {"DepthwiseConv2dNativeBackpropFilter", UndilatedConvolution},
    {"DepthwiseConv2dNativeBackpropInput", UndilatedConvolution},
    {"FusedBatchNorm", BatchNorm, FasterBatchNorm, kBatchNormResults},
    {"FusedBatchNormGrad", BatchNorm, FasterBatchNorm, kBatchNormGradientResults},
    {"FusedBatchNormGradV2", BatchNorm, FasterBatchNorm, kBatchNormGradientResults},
    {"FusedBatchNormGradV3", BatchNorm, FasterBatchNorm, kBatchNormGradientResults},
    {"FusedBatchNormV2", BatchNorm, FasterBatchNorm, kBatchNormResults},
    {"FusedBatchNormV3", BatchNorm, FasterBatchNorm, kBatchNormResults},
    {"MaxPool", Pooling},
    {"MaxPool3D", Pooling},
    {"MaxPool3DGrad", Pooling},
    {"MaxPool3DGradGrad", Pooling},
    {"MaxPoolGrad", Pooling},
    {"MaxPoolGradGrad", Pooling},
    {"ResizeBilinear", Always},
    {"ResizeBilinearGrad", Always},
    {kNearestGradient, Always},
    {"StatelessMultinomial", Always},
    {"StatelessParameterizedTruncatedNormal", Always},
    {kAlgorithmOfDevice, Always},
    {"StatelessRandomGetKeyCounter", Always},
    {"StatelessRandomNormal", Always},
    {"StatelessRandomNormalV2", Philox},
    {"StatelessRandomUniform", Always},
    {"StatelessRandomUniformFullInt", Always},
    {"StatelessRandomUniformFullIntV2", Philox},
    {"StatelessRandomUniformInt", Always},
    {"StatelessRandomUniformIntV2", Philox},
    {"StatelessRandomUniformV2", Philox},
    {"StatelessTruncatedNormal", Always},
    {"StatelessTruncatedNormalV2", Philox},
    {"TopKV2", Always, FasterForMany},
};

const Layer& LayerOf(const std::string& op) {
  return *std::find_if(std::begin(kLayers), std::end(kLayers), [&](const Layer& layer) { return op == layer.op; });
}

class HostLayer : public tf::XlaOpKernel {
 public:
  explicit HostLayer(tf::OpKernelConstruction* construction)
      : XlaOpKernel(construction), layer_(LayerOf(type_string())) {
    tf::TryGetNodeAttr(def(), kHostKernelAttribute, &mark_);
    tf::TryGetNodeAttr(def(), kInLoopAttribute, &in_loop_);
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    const bool marked = !mark_.empty();
    if (marked && type_string_view() == kAlgorithmOfDevice) {
      // A constant, since XLA's lowerings of random ops must know it at compile time.
      context->SetConstantOutput(0, tf::Tensor(static_cast<int32_t>(tf::RNG_ALG_PHILOX)));
      return;
    }
    if (marked && type_string_view() == kAssert) {
      OP_REQUIRES_OK(context, CallAssertion(context));
      return;
    }
    const tf::AttrSlice node(def());
    const bool always = mark_ == kWhereverKnown;
    if (marked && !always && LowerAsProduct(context)) return;
    const bool wanted = marked && (always || layer_.faster({context, node, in_loop_}));
    if (wanted && layer_.suits(context, node) && HasHostKernel(context)) {
      if (const std::optional<std::vector<tf::TensorShape>> results = ResultShapes(context, layer_.results)) {
        const bool check = type_string_view() == kCheckNumerics || type_string_view() == kCheckNumericsV2;
        OP_REQUIRES_OK(context, CallHostKernel(context, *results, /*always=*/check));
        return;
      }
    }
    OP_REQUIRES(
        context, type_string_view() != kNearestGradient,
        absl::InvalidArgumentError(
            "XLA has no lowering of ResizeNearestNeighborGrad, the gradient of resizing to the nearest element, "
            "which a program has a kernel of the host compute. Trace it for an IPU, with the strategy's "
            "`host_kernels` left on and in one of the types that the kernel has, or resize by `tf.repeat`."));
    LowerAsXla(context);
  }

 private:
  const Layer& layer_;
  std::string mark_;
  bool in_loop_ = false;
};

const bool layers_registered = std::all_of(std::begin(kLayers), std::end(kLayers), [](const Layer& layer) {
  return RegisterProgramKernel<HostLayer>(layer.op);
});

}  // namespace

const std::string& HostLayers() {
  static const auto* const names = [] {
    auto* const joined = new std::string();
    for (const Layer& layer : kLayers) absl::StrAppend(joined, joined->empty() ? "" : "\n", layer.op);
    return joined;
  }();
  return *names;
}

}  // namespace tensorflow_ipu
