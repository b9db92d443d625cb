#include "tensorflow_ipu/kernels/host/twin.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

constexpr char kPrefix[] = "_MklNative";
constexpr char kWorkspace[] = "workspace";

const tf::OpDef* Find(const std::string& op) {
  const tf::OpDef* found = nullptr;
  return tf::OpRegistry::Global()->LookUpOpDef(op, &found).ok() ? found : nullptr;
}

// With those attributes of the node that the op has; null without a kernel.
std::unique_ptr<tf::OpKernel> KernelOf(const tf::OpDef& op, const tf::NodeDef& node) {
  tf::NodeDef mine;
  mine.set_op(op.name());
  mine.set_name(op.name());
  for (const tf::OpDef::ArgDef& argument : op.input_arg()) mine.add_input(argument.name());
  for (const tf::OpDef::AttrDef& attribute : op.attr()) {
    const auto found = node.attr().find(attribute.name());
    if (found != node.attr().end()) (*mine.mutable_attr())[attribute.name()] = found->second;
    if (attribute.name() == "workspace_enabled") tf::SetAttrValue(true, &(*mine.mutable_attr())[attribute.name()]);
  }
  tf::AddDefaultsToNodeDef(op, &mine);
  tf::AddNodeAttr("_kernel", "MklNameChangeOp", &mine);
  auto kernel = CreateKernel(mine);
  return kernel.ok() ? *std::move(kernel) : nullptr;
}

// Runs a small gradient of a convolution: TensorFlow checks the processor alone, but `ONEDNN_MAX_CPU_ISA` may restrict
// oneDNN.
bool Tried(tf::DataType type) {
  const tf::OpDef* const op = Find(absl::StrCat(kPrefix, "Conv2DBackpropFilter"));
  if (op == nullptr) return false;
  tf::NodeDef node;
  tf::AddNodeAttr("T", type, &node);
  tf::AddNodeAttr("strides", std::vector<int>{1, 1, 1, 1}, &node);
  tf::AddNodeAttr("padding", "SAME", &node);
  const std::unique_ptr<tf::OpKernel> kernel = KernelOf(*op, node);
  if (kernel == nullptr) return false;
  constexpr int kSide = 4, kFeatures = 16;
  tf::Tensor images(type, {1, kSide, kSide, kFeatures}), sizes(tf::DT_INT32, {4});
  std::memset(images.data(), 0, images.TotalBytes());
  sizes.flat<int32_t>().setConstant(1);
  sizes.flat<int32_t>()(2) = sizes.flat<int32_t>()(3) = kFeatures;
  KernelDevice device;
  device.Begin(HostThreads::Of(1));
  return Call(kernel.get(), {images, sizes, images}, &device, 0).ok();
}

}  // namespace

bool OneDnnComputes(tf::DataType type) {
  static const bool computes_float = Tried(tf::DT_FLOAT), computes_bfloat16 = Tried(tf::DT_BFLOAT16);
  // With float16, its gradients of filters take 70 times as long as XLA's.
  return type == tf::DT_FLOAT ? computes_float : type == tf::DT_BFLOAT16 && computes_bfloat16;
}

std::unique_ptr<const Twin> Twin::Of(const tf::OpDef& op, const tf::NodeDef& node) {
  tf::DataType type = tf::DT_INVALID;
  if (!tf::TryGetNodeAttr(node, "T", &type) || !OneDnnComputes(type)) return nullptr;
  std::string padding;
  if (tf::TryGetNodeAttr(node, "padding", &padding) && padding == "EXPLICIT") return nullptr;
  const tf::OpDef* const twin = Find(absl::StrCat(kPrefix, op.name()));
  if (twin == nullptr) return nullptr;
  std::unique_ptr<tf::OpKernel> kernel = KernelOf(*twin, node), forward;
  if (kernel == nullptr) return nullptr;
  const int more = twin->input_arg_size() - op.input_arg_size();
  if (more == 1 && twin->input_arg().rbegin()->name() == kWorkspace) {
    const tf::OpDef* const before = Find(std::string(absl::StripSuffix(twin->name(), "Grad")));
    forward = before == nullptr || before == twin ? nullptr : KernelOf(*before, node);
    if (forward == nullptr || forward->num_inputs() != 1 || forward->num_outputs() != 2) return nullptr;
  } else if (more != 0 || twin->output_arg_size() < op.output_arg_size()) {
    return nullptr;
  }
  return std::make_unique<const Twin>(std::move(kernel), std::move(forward));
}

absl::StatusOr<Tensors> Twin::Compute(absl::Span<const tf::Tensor> inputs, KernelDevice* device,
                                      std::size_t lent) const {
  if (forward_ == nullptr) return Call(kernel_.get(), inputs, device, lent);
  // This takes a fraction of the time of TensorFlow's gradient, which searches for the maxima too.
  absl::StatusOr<Tensors> before = Call(forward_.get(), inputs.subspan(0, 1), device, 0);
  if (!before.ok()) return before.status();
  Tensors all(inputs.begin(), inputs.end());
  all.push_back(std::move((*before)[1]));
  return Call(kernel_.get(), all, device, lent);
}

}  // namespace tensorflow_ipu
