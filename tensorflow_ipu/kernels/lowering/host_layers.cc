// The layers that programs compute by host kernels: convolutions, poolings, batch normalization, random numbers; and
// checks, which XLA drops. Only nodes of programs use these kernels. They use XLA's lowering if the host kernel does
// not support the node or is not faster.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/rng_alg.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow_ipu/kernels/host/kernel.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "tensorflow_ipu/kernels/lowering/host_kernel.h"
#include "tensorflow_ipu/kernels/lowering/program_kernels.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

// The attribute of an `Assert` that contains the strings among its data, in order. A program itself cannot contain
// strings.
constexpr char kTextsAttribute[] = "_ipu_texts";

void LowerAssert(tf::XlaOpKernelContext* context) {
  const tf::AttrSlice node(context->op_kernel().def());
  std::vector<std::string> texts;
  int64_t summarize = 3;
  tf::TryGetNodeAttr(node, kTextsAttribute, &texts);
  tf::TryGetNodeAttr(node, "summarize", &summarize);
  std::vector<PartOfMessage> message;
  for (int i = 1; i < context->num_inputs(); ++i) {
    if (context->input_type(i) == tf::DT_STRING) {
      const auto text = static_cast<std::size_t>(i - 1);
      message.emplace_back(text < texts.size() ? texts[text] : "");
    } else {
      message.emplace_back(context->Input(i));
    }
  }
  CallAssertion(context, context->Input(0), message, summarize);
}

using Sizes = std::vector<int64_t>;

enum class Role { kForward, kOfInput, kOfFilter };

// Returns true if a convolution has a filter of one element, and neither groups nor explicit padding.
bool IsPointwise(const tf::NodeDef& node, const Sizes& filter, int64_t features) {
  std::string format, padding;
  if (!tf::TryGetNodeAttr(node, "data_format", &format) || (format != "NHWC" && format != "NDHWC")) return false;
  if (!tf::TryGetNodeAttr(node, "padding", &padding) || (padding != "SAME" && padding != "VALID")) return false;
  return std::all_of(filter.begin(), filter.end() - 2, [](int64_t size) { return size == 1; }) &&
         filter[filter.size() - 2] == features;
}

// Returns the sizes of an input or, with `is_shape`, the sizes that the input contains; empty if they are unknown.
Sizes SizesOf(tf::XlaOpKernelContext* context, int input, bool is_shape) {
  if (is_shape) {
    tf::TensorShape shape;
    if (!context->ConstantInputAsShape(input, &shape).ok()) return {};
    const auto sizes = shape.dim_sizes();
    return {sizes.begin(), sizes.end()};
  }
  const absl::StatusOr<xla::Shape> shape = context->InputXlaShape(input);
  if (!shape.ok() || shape->is_dynamic()) return {};
  return {shape->dimensions().begin(), shape->dimensions().end()};
}

// Lowers the node to a product of matrices if it is a convolution by a filter of one element, without groups and
// padding, or a gradient of such a convolution. XLA computes the product in half the time of the convolution. Strides
// drop positions of the images before the product, or insert zeros after it. Returns false if the node is not such a
// convolution.
bool LowerAsProduct(tf::XlaOpKernelContext* context) {
  const tf::NodeDef& node = context->op_kernel().def();
  const bool convolution = absl::StartsWith(node.op(), "Conv2D") || absl::StartsWith(node.op(), "Conv3D");
  if (!convolution) return false;
  const Role role = absl::StrContains(node.op(), "BackpropInput")    ? Role::kOfInput
                    : absl::StrContains(node.op(), "BackpropFilter") ? Role::kOfFilter
                                                                     : Role::kForward;
  const Sizes input = SizesOf(context, 0, role == Role::kOfInput);
  const Sizes filter = SizesOf(context, 1, role == Role::kOfFilter);
  Sizes strides;
  if (input.size() < 3 || filter.size() != input.size() || !IsPointwise(node, filter, input.back())) return false;
  if (!tf::TryGetNodeAttr(node, "strides", &strides) || strides.size() != input.size()) return false;
  // Such strides are an error, which XLA's lowering reports.
  if (strides.front() != 1 || strides.back() != 1) return false;
  const int64_t in = input.back(), out = filter.back();
  Sizes used = input;  // The positions of the images that the strides select.
  xla::PaddingConfig skipped;
  for (std::size_t i = 0; i < input.size(); ++i) {
    used[i] = (input[i] + strides[i] - 1) / strides[i];
    auto* const axis = skipped.add_dimensions();
    axis->set_interior_padding(strides[i] - 1);
    axis->set_edge_padding_high(input[i] - ((used[i] - 1) * strides[i] + 1));
  }
  Sizes output = used;
  output.back() = out;
  const int64_t places = std::accumulate(used.begin(), used.end() - 1, int64_t{1}, std::multiplies<int64_t>());
  if (places == 0 || in == 0 || out == 0) return false;
  const auto flat = [&](int number, int64_t rows, int64_t columns) {
    return xla::Reshape(context->Input(number), {rows, columns});
  };
  const auto images = [&] {
    return xla::Reshape(xla::Slice(context->Input(0), Sizes(input.size(), 0), input, strides), {places, in});
  };
  xla::DotDimensionNumbers axes;
  const auto contract = [&](int left, int right) {
    axes.add_lhs_contracting_dimensions(left);
    axes.add_rhs_contracting_dimensions(right);
  };
  if (role == Role::kForward) {
    contract(1, 0);
    context->SetOutput(0, xla::Reshape(xla::DotGeneral(images(), flat(1, in, out), axes), output));
  } else if (role == Role::kOfInput) {
    contract(1, 1);
    const xla::XlaOp product = xla::Reshape(xla::DotGeneral(flat(2, places, out), flat(1, in, out), axes), used);
    context->SetOutput(0, xla::Pad(product, xla::Zero(context->builder(), context->input_xla_type(2)), skipped));
  } else {
    contract(0, 0);
    context->SetOutput(0, xla::Reshape(xla::DotGeneral(images(), flat(2, places, out), axes), filter));
  }
  return true;
}

// The factors below were measured by benchmarks/layers on processors with AVX-512 and, by limiting oneDNN, with AVX2.
// docs/host_kernels.md describes the rules for users.

struct Lowered {
  tf::XlaOpKernelContext* context;
  tf::AttrSlice node;
  bool in_loop;  // In loops, XLA computes few convolutions fast.
};

// Returns the shape of an input or, if it is the shape input of a gradient, the shape that it contains.
std::optional<tf::TensorShape> ShapeOf(tf::XlaOpKernelContext* context, int input) {
  const absl::StatusOr<xla::Shape> shape = context->InputXlaShape(input);
  if (!shape.ok()) return std::nullopt;
  if (shape->dimensions().size() > 1) return tf::TensorShape(shape->dimensions());
  tf::TensorShape contents;
  if (!context->ConstantInputAsShape(input, &contents).ok()) return std::nullopt;
  return contents;
}

constexpr int kRank = 4, kRows = 1, kColumns = 2;  // The axes of the images of a `Conv2D`.

// Returns true if a `Conv2D` or one of its gradients is small. Either its images have one row, as in convolutions of
// one dimension, and few elements. Or it has few output positions and few products. `skipped` is the product of the
// strides.
bool IsSmall(const tf::TensorShape& images, int64_t filter_elements, int64_t skipped, tf::DataType type) {
  constexpr int64_t kShortRow = 256 << 10, kFewPlaces = 8 << 10, kFewProducts = 20 << 20;
  if (images.dim_size(kRows) == 1) return images.num_elements() < kShortRow;
  if (type != tf::DT_FLOAT) return false;
  const int64_t places = images.dim_size(0) * images.dim_size(kRows) * images.dim_size(kColumns) / skipped;
  return places <= kFewPlaces && places * filter_elements < kFewProducts;
}

bool IsSmall(const Lowered& layer) {
  const std::optional<tf::TensorShape> images = ShapeOf(layer.context, 0);
  const std::optional<tf::TensorShape> filter = ShapeOf(layer.context, 1);
  std::vector<int32_t> strides;
  if (!images || !filter || images->dims() != kRank || !tf::TryGetNodeAttr(layer.node, "strides", &strides)) {
    return false;
  }
  tf::DataType type = tf::DT_INVALID;
  if (!tf::TryGetNodeAttr(layer.node, "T", &type)) return false;
  return IsSmall(*images, filter->num_elements(), strides[kRows] * strides[kColumns], type);
}

// XLA repeats random draws for each of their uses. XLA takes 10 to 40 times as long as the host kernels for max
// poolings and their gradients, 30 to 300 times for depthwise convolutions, and 5 to 20 times for bilinear resizing.
bool AlwaysFaster(const Lowered&) { return true; }

// For types that oneDNN does not compute, TensorFlow's own kernels take 4 to 10 times as long as XLA's code. Float16,
// and bfloat16 without AVX-512, were already replaced by float32: see `Widen`.
bool FasterWhereOneDnn(const Lowered& layer) {
  tf::DataType type = tf::DT_INVALID;
  if (!tf::TryGetNodeAttr(layer.node, "T", &type)) return false;
  return type == tf::DT_DOUBLE || OneDnnComputes(type);
}

// As FasterWhereOneDnn, except for small convolutions. XLA computes convolutions of one dimension below 1 MiB in 0.6 to
// 0.9 of oneDNN's time, because it divides them better among cores. The same holds for float32 convolutions with at
// most 8 Ki output positions and less than 20 Mi products.
bool FasterConvolution(const Lowered& layer) { return FasterWhereOneDnn(layer) && !IsSmall(layer); }

// In loops, XLA computes gradients of convolutions of any type by its slowest code, and not all loops are known here.
// Gradients that XLA computes fast were rewritten before (`programs/_host_kernels.py`).
bool FasterGradient(const Lowered& layer) { return layer.in_loop || FasterWhereOneDnn(layer); }

// For mean poolings whose windows overlap, and for their gradients, XLA takes 2 to 5 times as long as TensorFlow's
// kernels. For other windows it takes 0.7 to 1.0 of their time.
bool FasterWhereOverlapping(const Lowered& layer) {
  std::vector<int32_t> windows, strides;
  if (!tf::TryGetNodeAttr(layer.node, "ksize", &windows) || !tf::TryGetNodeAttr(layer.node, "strides", &strides)) {
    return false;
  }
  bool overlap = false;
  for (std::size_t i = 0; i < windows.size() && i < strides.size(); ++i) overlap |= windows[i] > strides[i];
  return overlap && FasterWhereOneDnn(layer);
}

// XLA normalizes small batches in 0.2 to 1.0 of oneDNN's time, since oneDNN divides them badly among cores. Small means
// less than 2 MiB of float32; without AVX-512, less than 3 MiB or less than 32 features. For larger batches XLA takes
// 1.2 to 9 times as long: it sums a few features at a time over all but the last dimension, and reads the memory again
// for each.
bool FasterBatchNorm(const Lowered& layer) {
  constexpr int64_t kLarge = 512 << 10, kLargeWithoutAvx512 = 768 << 10, kManyFeatures = 32;
  const absl::StatusOr<xla::Shape> images = layer.context->InputXlaShape(0);
  if (!FasterWhereOneDnn(layer) || !images.ok() || images->dimensions().empty()) return false;
  const int64_t elements = xla::ShapeUtil::ElementsIn(*images);
  if (OneDnnComputes(tf::DT_BFLOAT16)) return elements >= kLarge;  // The processor has AVX-512.
  return elements >= kLargeWithoutAvx512 && images->dimensions().back() >= kManyFeatures;
}

// XLA is faster if it selects few of many elements. It takes 2 to 7 times as long as the host kernel if it sorts all.
bool FasterForMany(const Lowered& layer) {
  constexpr int kFew = 4;  // At least one of this many elements is selected.
  int64_t count = 0;
  const absl::StatusOr<xla::Shape> from = layer.context->InputXlaShape(0);
  const absl::Status known = layer.context->ConstantInputAsIntScalar(1, &count);
  return known.ok() && from.ok() && !from->dimensions().empty() && kFew * count >= from->dimensions().back();
}

using Suits = bool (*)(tf::XlaOpKernelContext*, const tf::AttrSlice&);
using Faster = bool (*)(const Lowered&);

constexpr int kAll = std::numeric_limits<int>::max();
// A `FusedBatchNorm` has further results, which only kernels of other devices use.
constexpr int kBatchNormResults = 5, kBatchNormGradientResults = 3;

bool Always(tf::XlaOpKernelContext*, const tf::AttrSlice&) { return true; }
bool Never(tf::XlaOpKernelContext*, const tf::AttrSlice&) { return false; }  // See LowerAsSumOfProducts.

// Returns true if the channels are the last axis, which is the only data format of the host's kernels.
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

bool HasChannelsLast(tf::XlaOpKernelContext*, const tf::AttrSlice& node) { return ChannelsLast(node); }

// The host's kernels support dilations only in plain forward convolutions.
bool UndilatedConvolution(tf::XlaOpKernelContext*, const tf::AttrSlice& node) {
  return ChannelsLast(node) && Undilated(node);
}

// Returns true if a draw uses Philox, or the device's default algorithm, which is Philox on the host.
bool Philox(tf::XlaOpKernelContext* context, const tf::AttrSlice&) {
  constexpr int kAlgorithm = 3;  // The index of the algorithm input, in all such ops.
  int64_t algorithm = 0;
  const absl::Status known = context->ConstantInputAsIntScalar(kAlgorithm, &algorithm);
  return known.ok() && (algorithm == tf::RNG_ALG_PHILOX || algorithm == tf::RNG_ALG_AUTO_SELECT);
}

// The op that returns the device's default algorithm.
constexpr char kAlgorithmOfDevice[] = "StatelessRandomGetAlg";

// XLA computes gradients of grouped convolutions; the host's kernels do not.
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

bool IsCheckNumerics(std::string_view op) { return op == kCheckNumerics || op == kCheckNumericsV2; }

// Returns true if XLA computes the node's results while it compiles the program. It may have to, because a shape or an
// axis may depend on them. It never does so for random numbers.
bool FoldedByXla(tf::XlaOpKernelContext* context) {
  constexpr int64_t kMany = 16 << 10;  // Shapes have fewer elements.
  if (absl::StartsWith(context->op_kernel().type_string_view(), "Stateless")) return false;
  for (int i = 0; i < context->num_inputs(); ++i) {
    const absl::StatusOr<xla::Shape> shape = context->InputXlaShape(i);
    if (!shape.ok() || xla::ShapeUtil::ElementsIn(*shape) > kMany) return false;
    const absl::StatusOr<bool> constant = context->builder()->IsConstant(context->Input(i));
    if (!constant.ok() || !*constant) return false;
  }
  return true;
}

struct Layer {
  const char* op;
  Suits suits;                   // Returns true if the host's kernel can compute the node.
  Faster faster = AlwaysFaster;  // Returns true if it is faster than XLA's code.
  int results = kAll;            // The number of results with values; the others are empty.
  bool in_xla = true;            // True if XLA has a lowering of the op.
};

constexpr Layer HostOnly(const char* op, Suits suits = Always) { return {op, suits, AlwaysFaster, kAll, false}; }

constexpr Layer kLayers[] = {
    {kAssert, Always},
    {"AvgPool", Pooling, FasterWhereOverlapping},
    {"AvgPool3D", Pooling, FasterWhereOverlapping},
    {"AvgPool3DGrad", Pooling, FasterWhereOverlapping},
    {"AvgPoolGrad", Pooling, FasterWhereOverlapping},
    {kCheckNumerics, Always},
    {kCheckNumericsV2, Always},
    {"Conv2D", HasChannelsLast, FasterConvolution},
    {"Conv2DBackpropFilter", GradientOfFilter, FasterGradient},
    {"Conv2DBackpropInput", GradientOfInput, FasterGradient},
    {"Conv3D", UndilatedConvolution, FasterConvolution},
    {"Conv3DBackpropFilterV2", GradientOfFilter, FasterGradient},
    {"Conv3DBackpropInputV2", GradientOfInput, FasterGradient},
    {"DepthwiseConv2dNative", UndilatedConvolution},
    {"DepthwiseConv2dNativeBackpropFilter", UndilatedConvolution},
    {"DepthwiseConv2dNativeBackpropInput", UndilatedConvolution},
    {"FusedBatchNorm", HasChannelsLast, FasterBatchNorm, kBatchNormResults},
    {"FusedBatchNormGrad", HasChannelsLast, FasterBatchNorm, kBatchNormGradientResults},
    {"FusedBatchNormGradV2", HasChannelsLast, FasterBatchNorm, kBatchNormGradientResults},
    {"FusedBatchNormGradV3", HasChannelsLast, FasterBatchNorm, kBatchNormGradientResults},
    {"FusedBatchNormV2", HasChannelsLast, FasterBatchNorm, kBatchNormResults},
    {"FusedBatchNormV3", HasChannelsLast, FasterBatchNorm, kBatchNormResults},
    {"MaxPool", Pooling},
    {"MaxPool3D", Pooling},
    {"MaxPool3DGrad", Pooling},
    {"MaxPool3DGradGrad", Pooling},
    {"MaxPoolGrad", Pooling},
    {"MaxPoolGradGrad", Pooling},
    {"Mean", Never},
    HostOnly("IpuRecurrence"),
    HostOnly("IpuRecurrenceGrad"),
    {"ResizeBilinear", Always},
    {"ResizeBilinearGrad", Always},
    HostOnly("ResizeNearestNeighborGrad"),
    {"StatelessMultinomial", Always},
    {"StatelessParameterizedTruncatedNormal", Always},
    HostOnly("StatelessRandomBinomial"),
    HostOnly("StatelessRandomGammaV2"),
    HostOnly("StatelessRandomGammaV3", Philox),
    {kAlgorithmOfDevice, Always},
    {"StatelessRandomGetKeyCounter", Always},
    {"StatelessRandomNormal", Always},
    {"StatelessRandomNormalV2", Philox},
    HostOnly("StatelessRandomPoisson"),
    {"StatelessRandomUniform", Always},
    {"StatelessRandomUniformFullInt", Always},
    {"StatelessRandomUniformFullIntV2", Philox},
    {"StatelessRandomUniformInt", Always},
    {"StatelessRandomUniformIntV2", Philox},
    {"StatelessRandomUniformV2", Philox},
    HostOnly("StatelessShuffle", Philox),
    {"StatelessTruncatedNormal", Always},
    {"StatelessTruncatedNormalV2", Philox},
    {"Sum", Never},
    {"TopKV2", Always, FasterForMany},
};

const Layer& LayerOf(const std::string& op) {
  return *std::find_if(std::begin(kLayers), std::end(kLayers), [&](const Layer& layer) { return op == layer.op; });
}

// Changes the type of a node to the type of the host's kernels. Its operands are widened, and its results rounded.
void Widen(tf::NodeDef* node) {
  const auto type = node->mutable_attr()->find("T");
  if (type != node->mutable_attr()->end()) type->second.set_type(ComputedType(type->second.type()));
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
      // Sets a constant, since XLA's lowerings of random ops must know the algorithm at compile time.
      context->SetConstantOutput(0, tf::Tensor(static_cast<int32_t>(tf::RNG_ALG_PHILOX)));
      return;
    }
    if (marked && type_string_view() == kAssert) {
      LowerAssert(context);
      return;
    }
    const bool check = IsCheckNumerics(type_string_view());
    tf::NodeDef called = def();
    if (!check) Widen(&called);
    const tf::AttrSlice node(called);
    const bool always = mark_ == kWhereverKnown;
    if (marked && !always && (LowerAsProduct(context) || LowerAsSumOfProducts(context))) return;
    const bool uses_host = marked && (always || layer_.faster({context, node, in_loop_}));
    if (uses_host && layer_.suits(context, node) && HasHostKernel(called)) {
      if (const std::optional<std::vector<tf::TensorShape>> results = ResultShapes(context, layer_.results)) {
        const bool folded = layer_.in_xla && FoldedByXla(context);
        if (folded && !check) return LowerAsXla(context);
        absl::StatusOr<std::vector<xla::XlaOp>> outputs = CallHostKernel(context, called, *results, /*always=*/check);
        OP_REQUIRES_OK(context, outputs.status());
        if (folded) outputs->front() = context->Input(0);  // A check returns its input.
        SetOutputs(context, *outputs);
        for (int i = static_cast<int>(outputs->size()); i < context->num_outputs(); ++i) {
          context->SetConstantOutput(i, tf::Tensor(context->expected_output_dtype(i)));
        }
        return;
      }
    }
    OP_REQUIRES(context, layer_.in_xla,
                absl::InvalidArgumentError(absl::StrCat(
                    "XLA has no lowering of ", NameForMessages(context, TextOf(def())),
                    "; only a kernel of the host can compute it. Trace the program for an "
                    "IPU, do not switch off the strategy's `host_kernels`, and use a type that the kernel supports.")));
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
}  // namespace tensorflow_ipu

extern "C" {

// Returns the ops that host kernels may compute, one per line.
const char* ipu_host_layers() {
  static const auto* const names = [] {
    auto* const joined = new std::string();
    for (const auto& layer : tensorflow_ipu::kLayers) absl::StrAppend(joined, joined->empty() ? "" : "\n", layer.op);
    return joined;
  }();
  return names->c_str();
}

// Returns 1 if a `Conv2D` of images of these four dimensions is so small that XLA computes it faster than the host's
// kernels. `skipped` is the product of the strides, and `type` a `DataType`.
int32_t ipu_small_convolution(const int64_t* images, int64_t filter_elements, int64_t skipped, int32_t type) {
  const tensorflow::TensorShape shape({images[0], images[1], images[2], images[3]});
  return tensorflow_ipu::IsSmall(shape, filter_elements, skipped,
                                 tensorflow_ipu::ComputedType(static_cast<tensorflow::DataType>(type)));
}

}  // extern "C"
