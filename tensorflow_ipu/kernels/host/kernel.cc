#include "tensorflow_ipu/kernels/host/kernel.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/denormal.h"
#include "tensorflow/core/platform/protobuf.h"
#include "tensorflow/core/platform/setround.h"
#include "tensorflow_ipu/kernels/host/convolution.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

constexpr char kPrefix[] = "_MklNative";
constexpr char kWorkspace[] = "workspace";

const tf::OpDef* Find(const std::string& op) {
  const tf::OpDef* op_def = nullptr;
  return tf::OpRegistry::Global()->LookUpOpDef(op, &op_def).ok() ? op_def : nullptr;
}

// Creates the kernel of `op`, with those attributes of the node that the op has. Returns null if there is none.
std::unique_ptr<tf::OpKernel> KernelOf(const tf::OpDef& op, const tf::NodeDef& node) {
  tf::NodeDef replacement;
  replacement.set_op(op.name());
  replacement.set_name(op.name());
  for (const tf::OpDef::ArgDef& argument : op.input_arg()) replacement.add_input(argument.name());
  for (const tf::OpDef::AttrDef& attribute : op.attr()) {
    const auto found = node.attr().find(attribute.name());
    if (found != node.attr().end()) (*replacement.mutable_attr())[attribute.name()] = found->second;
    if (attribute.name() == "workspace_enabled")
      tf::SetAttrValue(true, &(*replacement.mutable_attr())[attribute.name()]);
  }
  tf::AddDefaultsToNodeDef(op, &replacement);
  tf::AddNodeAttr("_kernel", "MklNameChangeOp", &replacement);
  auto kernel = CreateKernel(replacement);
  return kernel.ok() ? *std::move(kernel) : nullptr;
}

// Tries to compute a small gradient of a convolution by oneDNN. Returns true on success. TensorFlow checks only the
// processor, but `ONEDNN_MAX_CPU_ISA` may restrict oneDNN.
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
  // With float16, oneDNN's gradients of filters take 70 times as long as XLA's.
  return type == tf::DT_FLOAT ? computes_float : type == tf::DT_BFLOAT16 && computes_bfloat16;
}

tf::DataType ComputedType(tf::DataType type) {
  const bool narrow = type == tf::DT_HALF || type == tf::DT_BFLOAT16;
  return narrow && !OneDnnComputes(type) ? tf::DT_FLOAT : type;
}

std::unique_ptr<const OneDnnKernel> OneDnnKernel::Of(const tf::OpDef& op, const tf::NodeDef& node) {
  tf::DataType type = tf::DT_INVALID;
  if (!tf::TryGetNodeAttr(node, "T", &type) || !OneDnnComputes(type)) return nullptr;
  std::string padding;
  if (tf::TryGetNodeAttr(node, "padding", &padding) && padding == "EXPLICIT") return nullptr;
  const tf::OpDef* const replacement = Find(absl::StrCat(kPrefix, op.name()));
  if (replacement == nullptr) return nullptr;
  std::unique_ptr<tf::OpKernel> kernel = KernelOf(*replacement, node), forward;
  if (kernel == nullptr) return nullptr;
  const int more = replacement->input_arg_size() - op.input_arg_size();
  if (more == 1 && replacement->input_arg().rbegin()->name() == kWorkspace) {
    const tf::OpDef* const before = Find(std::string(absl::StripSuffix(replacement->name(), "Grad")));
    forward = before == nullptr || before == replacement ? nullptr : KernelOf(*before, node);
    if (forward == nullptr || forward->num_inputs() != 1 || forward->num_outputs() != 2) return nullptr;
  } else if (more != 0 || replacement->output_arg_size() < op.output_arg_size()) {
    return nullptr;
  }
  return std::make_unique<const OneDnnKernel>(std::move(kernel), std::move(forward));
}

absl::StatusOr<Tensors> OneDnnKernel::Compute(absl::Span<const tf::Tensor> inputs, KernelDevice* device,
                                              std::size_t lent) const {
  if (forward_ == nullptr) return Call(kernel_.get(), inputs, device, lent);
  // This takes a fraction of the time of TensorFlow's gradient, which also searches for the maxima.
  TF_ASSIGN_OR_RETURN(Tensors before, Call(forward_.get(), inputs.subspan(0, 1), device, 0));
  Tensors all(inputs.begin(), inputs.end());
  all.push_back(std::move(before[1]));
  return Call(kernel_.get(), all, device, lent);
}

namespace {

// A tensor buffer that does not own its memory, so that no kernel reuses it for a result.
class Borrowed : public tf::TensorBuffer {
 public:
  explicit Borrowed(const HostBuffer& buffer) : TensorBuffer(buffer.data), bytes_(buffer.bytes) {}

  std::size_t size() const override { return bytes_; }
  tf::TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tf::AllocationDescription*) const override {}
  bool OwnsMemory() const override { return false; }

 private:
  const std::size_t bytes_;
};

absl::StatusOr<tf::Tensor> InputOf(tf::DataType type, const HostBuffer& buffer) {
  if (buffer.bytes == 0 || reinterpret_cast<std::uintptr_t>(buffer.data) % tf::Allocator::kAllocatorAlignment != 0) {
    return CopyOf(type, buffer);
  }
  return tf::Tensor(type, tf::TensorShape(buffer.dimensions),
                    tf::core::RefCountPtr<tf::TensorBuffer>(new Borrowed(buffer)));
}

absl::Status CopyResults(const Tensors& given, absl::Span<const HostBuffer> results) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    const HostBuffer& result = results[i];
    if (given[i].shape() != tf::TensorShape(result.dimensions) || given[i].TotalBytes() != result.bytes) {
      return absl::InternalError(absl::StrCat("Its output ", i, " has the shape ", given[i].shape().DebugString(),
                                              ", but the program was compiled for ",
                                              tf::TensorShape(result.dimensions).DebugString(), "."));
    }
    if (result.bytes > 0 && given[i].data() != result.data) std::memcpy(result.data, given[i].data(), result.bytes);
  }
  return absl::OkStatus();
}

std::size_t BytesOf(absl::Span<const HostBuffer> buffers) {
  std::size_t bytes = 0;
  for (const HostBuffer& buffer : buffers) bytes += buffer.bytes;
  return bytes;
}

// A device that its thread keeps from call to call.
class DeviceOfCall {
 public:
  explicit DeviceOfCall(const HostThreads& threads) {
    static thread_local std::unique_ptr<KernelDevice> kept;
    kept_ = &kept;
    device_ = kept == nullptr ? std::make_unique<KernelDevice>() : std::move(kept);
    device_->Begin(threads);
  }
  ~DeviceOfCall() { *kept_ = std::move(device_); }

  KernelDevice* get() const { return device_.get(); }

 private:
  std::unique_ptr<KernelDevice>* kept_;
  std::unique_ptr<KernelDevice> device_;
};

absl::StatusOr<std::shared_ptr<const HostKernel>> Make(const std::string& text) {
  tf::NodeDef node;
  if (!tf::protobuf::TextFormat::ParseFromString(text, &node)) {
    return absl::InvalidArgumentError(absl::StrCat("`", text, "` is not a node."));
  }
  const tf::OpDef* op = nullptr;
  TF_RETURN_IF_ERROR(tf::OpRegistry::Global()->LookUpOpDef(node.op(), &op));
  // Their only side effect is an error.
  if (op->is_stateful() && node.op() != "CheckNumerics" && node.op() != "CheckNumericsV2") {
    return absl::UnimplementedError(
        absl::StrCat("`", node.op(),
                     "` is stateful: programs and replicas, which share kernels of the host, would share its state."));
  }
  TF_ASSIGN_OR_RETURN(std::unique_ptr<tf::OpKernel> own, CreateKernel(node));
  if (own->AsAsync() != nullptr) {
    return absl::UnimplementedError(absl::StrCat("`", node.op(), "` is asynchronous, and may end on any thread."));
  }
  return std::make_shared<const HostKernel>(std::move(own), OneDnnKernel::Of(*op, node), DirectConvolution::Of(node));
}

// Smaller tensors are computed on one thread and without oneDNN: waking a thread or oneDNN's setup would take longer
// than the computation. Narrow types use oneDNN at any size, because TensorFlow's kernels compute them many times
// slower.
constexpr std::size_t kLittle = 256 << 10;

bool IsNarrow(tf::DataType type) { return type == tf::DT_BFLOAT16 || type == tf::DT_HALF; }

}  // namespace

absl::StatusOr<tf::Tensor> CopyOf(tf::DataType type, const HostBuffer& buffer) {
  tf::Tensor copy(type, tf::TensorShape(buffer.dimensions));
  if (!copy.IsInitialized()) {
    return absl::ResourceExhaustedError(absl::StrCat("There is no memory for a copy of ", buffer.bytes, " bytes."));
  }
  if (buffer.bytes > 0) std::memcpy(copy.data(), buffer.data, buffer.bytes);
  return copy;
}

HostKernel::HostKernel(std::unique_ptr<tf::OpKernel> own, std::unique_ptr<const OneDnnKernel> onednn,
                       std::unique_ptr<const DirectConvolution> direct)
    : own_(std::move(own)),
      onednn_(std::move(onednn)),
      direct_(std::move(direct)),
      always_onednn_(IsNarrow(own_->output_type(0))) {}

HostKernel::~HostKernel() = default;

absl::StatusOr<std::shared_ptr<const HostKernel>> HostKernel::Of(const std::string& node) {
  static auto* const mutex = new absl::Mutex();
  static auto* const kernels = new std::map<std::string, std::shared_ptr<const HostKernel>>();
  const absl::MutexLock lock(mutex);
  const auto found = kernels->find(node);
  if (found != kernels->end()) return found->second;
  absl::StatusOr<std::shared_ptr<const HostKernel>> kernel = Make(node);
  if (kernel.ok()) kernels->emplace(node, *kernel);
  return kernel;
}

absl::Status HostKernel::Run(absl::Span<const HostBuffer> arguments, absl::Span<const HostBuffer> results,
                             const HostThreads& threads) const {
  // TensorFlow's executor sets the same modes.
  const tf::port::ScopedFlushDenormal flush;
  const tf::port::ScopedSetRound round(FE_TONEAREST);
  const bool little = BytesOf(arguments) + BytesOf(results) < kLittle;
  const HostThreads& used = little ? HostThreads::Of(1) : threads;
  if (direct_ != nullptr && direct_->Compute(arguments, results, used)) return absl::OkStatus();
  const DeviceOfCall device(used);
  Tensors inputs;
  inputs.reserve(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    TF_ASSIGN_OR_RETURN(tf::Tensor input, InputOf(own_->input_type(static_cast<int>(i)), arguments[i]));
    inputs.push_back(std::move(input));
  }
  const std::size_t lent = std::min(results.size(), KernelDevice::kLendable);
  for (std::size_t i = 0; i < lent; ++i) device.get()->Lend(i, results[i].data, results[i].bytes);
  if (onednn_ != nullptr && (always_onednn_ || !little)) {
    const absl::StatusOr<Tensors> given = onednn_->Compute(inputs, device.get(), lent);
    if (given.ok()) return CopyResults(*given, results);
    // TensorFlow's kernel computes inputs that oneDNN rejects, or reports the error.
  }
  const absl::StatusOr<Tensors> given = Call(own_.get(), inputs, device.get(), lent);
  return given.ok() ? CopyResults(*given, results) : given.status();
}

}  // namespace tensorflow_ipu
