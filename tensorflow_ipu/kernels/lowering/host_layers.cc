// What of a network's layers a program computes by kernels of the host: convolutions, poolings, batch normalization,
// random numbers; and checks, which XLA leaves out.
//
// Only nodes of programs name these kernels. Those hand on to XLA's lowerings what the kernels of the host do not know,
// and what XLA computes as fast.
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

// Among others the draws that have no algorithm to choose, for which TensorFlow takes Philox on the CPU.
bool Always(tf::XlaOpKernelContext*, const tf::AttrSlice&) { return true; }

// Whether a node has the one order of dimensions that the host's kernels know, with the channels last.
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

// The host's kernels have no gaps between the elements of a filter but where they are a plain convolution forward.
bool UndilatedConvolution(tf::XlaOpKernelContext*, const tf::AttrSlice& node) {
  return ChannelsLast(node) && Undilated(node);
}

// Whether a draw is to be by Philox, or by what the device takes by itself, which is Philox on the host.
bool Philox(tf::XlaOpKernelContext* context, const tf::AttrSlice&) {
  constexpr int kAlgorithm = 3;  // The input that says it, of all such ops.
  int64_t algorithm = 0;
  const absl::Status known = context->ConstantInputAsIntScalar(kAlgorithm, &algorithm);
  return known.ok() && (algorithm == tf::RNG_ALG_PHILOX || algorithm == tf::RNG_ALG_AUTO_SELECT);
}

// The op that asks which algorithm the device takes by itself.
constexpr char kAlgorithmOfDevice[] = "StatelessRandomGetAlg";

// The host's kernels give a group of features no gradients of its own, for which XLA does.
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

// What ends a run where numbers are not as they are to be. XLA leaves these out.
constexpr char kAssert[] = "Assert";
constexpr char kCheckNumerics[] = "CheckNumerics";
constexpr char kCheckNumericsV2[] = "CheckNumericsV2";

// What XLA has no lowering of.
constexpr char kNearestGradient[] = "ResizeNearestNeighborGrad";

struct Layer {
  const char* op;
  Suits suits;                   // Whether the host's kernel can compute the node.
  Faster faster = AlwaysFaster;  // Whether it takes less time than XLA's code does.
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
      // Known to whoever compiles, since XLA's lowerings of draws have to know it.
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
