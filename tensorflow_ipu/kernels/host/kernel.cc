#include "tensorflow_ipu/kernels/host/kernel.h"

#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/denormal.h"
#include "tensorflow/core/platform/protobuf.h"
#include "tensorflow/core/platform/setround.h"
#include "tensorflow/core/public/version.h"
#include "tensorflow/core/util/util.h"
#include "tensorflow_ipu/kernels/host/device.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

// Memory of a program, for as long as a kernel runs. It owns nothing, so that no kernel writes its result there.
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

tf::Tensor InputOf(tf::DataType type, const HostBuffer& buffer) {
  const tf::TensorShape shape(buffer.dimensions);
  if (buffer.bytes > 0 && reinterpret_cast<std::uintptr_t>(buffer.data) % tf::Allocator::kAllocatorAlignment == 0) {
    return tf::Tensor(type, shape, tf::core::RefCountPtr<tf::TensorBuffer>(new Borrowed(buffer)));
  }
  tf::Tensor copy(type, shape);
  if (buffer.bytes > 0) std::memcpy(copy.data(), buffer.data, buffer.bytes);
  return copy;
}

// Puts what a kernel gave into the program's memory, where it is not there already.
absl::Status Deliver(const tf::Tensor* given, int index, const HostBuffer& result) {
  if (given == nullptr) return absl::InternalError(absl::StrCat("It gave no output ", index, "."));
  if (given->shape() != tf::TensorShape(result.dimensions) || given->TotalBytes() != result.bytes) {
    return absl::InternalError(absl::StrCat("Its output ", index, " has the shape ", given->shape().DebugString(),
                                            ", but the program was compiled for ",
                                            tf::TensorShape(result.dimensions).DebugString(), "."));
  }
  if (result.bytes > 0 && given->data() != result.data) std::memcpy(result.data, given->data(), result.bytes);
  return absl::OkStatus();
}

// A device for a call of a kernel on this thread. Kept from call to call, since most threads make many.
class DeviceOfCall {
 public:
  explicit DeviceOfCall(const HostThreads& threads) {
    static thread_local std::unique_ptr<KernelDevice> kept;
    kept_ = &kept;
    device_ = kept == nullptr ? std::make_unique<KernelDevice>() : std::move(kept);
    device_->Begin(threads);
  }
  ~DeviceOfCall() { *kept_ = std::move(device_); }

  DeviceOfCall(const DeviceOfCall&) = delete;
  DeviceOfCall& operator=(const DeviceOfCall&) = delete;

  KernelDevice* get() const { return device_.get(); }

 private:
  std::unique_ptr<KernelDevice>* kept_;
  std::unique_ptr<KernelDevice> device_;
};

// oneDNN's twin of a node, which TensorFlow puts in its place where it uses that library; nothing where there is none
// with the same inputs and outputs.
std::optional<tf::NodeDef> TwinOf(const tf::OpDef& op, const tf::NodeDef& node) {
  // Where TensorFlow's rewriting is more particular than here, its own kernel computes the same.
  tf::DataType type = tf::DT_INVALID;
  std::string padding;
  if (!tf::IsMKLEnabled() || !tf::TryGetNodeAttr(node, "T", &type) || type != tf::DT_FLOAT) return std::nullopt;
  if (tf::TryGetNodeAttr(node, "padding", &padding) && padding == "EXPLICIT") return std::nullopt;
  tf::NodeDef twin = node;
  twin.set_op(absl::StrCat("_MklNative", node.op()));
  const tf::OpDef* twin_op = nullptr;
  if (!tf::OpRegistry::Global()->LookUpOpDef(twin.op(), &twin_op).ok()) return std::nullopt;
  if (twin_op->input_arg_size() != op.input_arg_size() || twin_op->output_arg_size() != op.output_arg_size()) {
    return std::nullopt;
  }
  tf::AddDefaultsToNodeDef(*twin_op, &twin);
  tf::AddNodeAttr("_kernel", "MklNameChangeOp", &twin);
  return twin;
}

absl::StatusOr<std::unique_ptr<tf::OpKernel>> Create(const tf::NodeDef& node) {
  static auto* const device = new KernelDevice();
  absl::Status status;
  std::unique_ptr<tf::OpKernel> kernel =
      tf::CreateOpKernel(tf::DEVICE_CPU, device, tf::cpu_allocator(), node, TF_GRAPH_DEF_VERSION, &status);
  if (!status.ok()) return status;
  return kernel;
}

absl::StatusOr<std::shared_ptr<const HostKernel>> Make(const std::string& text) {
  tf::NodeDef node;
  if (!tf::protobuf::TextFormat::ParseFromString(text, &node)) {
    return absl::InvalidArgumentError(absl::StrCat("`", text, "` is no node."));
  }
  const tf::OpDef* op = nullptr;
  if (absl::Status found = tf::OpRegistry::Global()->LookUpOpDef(node.op(), &op); !found.ok()) return found;
  if (op->is_stateful()) {
    return absl::UnimplementedError(
        absl::StrCat("`", node.op(),
                     "` is stateful: programs and replicas, which share kernels of the host, would share its state."));
  }
  absl::StatusOr<std::unique_ptr<tf::OpKernel>> own = Create(node);
  if (!own.ok()) return own.status();
  if ((*own)->AsAsync() != nullptr) {
    return absl::UnimplementedError(absl::StrCat("`", node.op(), "` ends on a thread of its own choice."));
  }
  std::unique_ptr<tf::OpKernel> twin;
  if (const std::optional<tf::NodeDef> other = TwinOf(*op, node)) {
    if (auto made = Create(*other); made.ok()) twin = *std::move(made);
  }
  return std::make_shared<const HostKernel>(*std::move(own), std::move(twin));
}

// For less, what oneDNN does before it computes takes longer than the rest.
constexpr std::size_t kWorthTwin = 256 << 10;

}  // namespace

absl::StatusOr<std::shared_ptr<const HostKernel>> HostKernel::Of(const std::string& node) {
  static auto* const mutex = new std::mutex();
  static auto* const kernels = new std::map<std::string, std::shared_ptr<const HostKernel>>();
  std::lock_guard<std::mutex> lock(*mutex);
  const auto found = kernels->find(node);
  if (found != kernels->end()) return found->second;
  absl::StatusOr<std::shared_ptr<const HostKernel>> made = Make(node);
  if (made.ok()) kernels->emplace(node, *made);
  return made;
}

tf::OpKernel* HostKernel::BestFor(absl::Span<const HostBuffer> arguments, absl::Span<const HostBuffer> results) const {
  if (twin_ == nullptr) return own_.get();
  std::size_t bytes = 0;
  for (const HostBuffer& buffer : arguments) bytes += buffer.bytes;
  for (const HostBuffer& buffer : results) bytes += buffer.bytes;
  return bytes < kWorthTwin ? own_.get() : twin_.get();
}

absl::Status HostKernel::Run(absl::Span<const HostBuffer> arguments, absl::Span<const HostBuffer> results,
                             const HostThreads& threads) const {
  // As TensorFlow's executor has them.
  const tf::port::ScopedFlushDenormal flush;
  const tf::port::ScopedSetRound round(FE_TONEAREST);
  tf::OpKernel* const kernel = BestFor(arguments, results);
  const DeviceOfCall device(threads);
  absl::InlinedVector<tf::Tensor, 4> inputs;
  inputs.reserve(arguments.size());
  absl::InlinedVector<tf::TensorValue, 4> values;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    inputs.push_back(InputOf(kernel->input_type(static_cast<int>(i)), arguments[i]));
    values.emplace_back(&inputs.back());
  }
  const absl::InlinedVector<tf::AllocatorAttributes, 4> input_attributes(arguments.size());
  absl::InlinedVector<tf::AllocatorAttributes, 4> output_attributes(results.size());
  for (std::size_t i = 0; i < results.size() && i < KernelDevice::kLendable; ++i) {
    device.get()->Lend(i, results[i].data, results[i].bytes);
    output_attributes[i] = KernelDevice::OfResult(i);
  }
  tf::OpKernelContext::Params params;
  params.device = device.get();
  params.op_kernel = kernel;
  params.inputs = values;
  params.input_alloc_attrs = input_attributes;
  params.output_attr_array = output_attributes.data();
  tf::OpKernelContext context(&params, static_cast<int>(results.size()));
  kernel->Compute(&context);
  if (!context.status().ok()) return context.status();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto index = static_cast<int>(i);
    if (absl::Status done = Deliver(context.mutable_output(index), index, results[i]); !done.ok()) return done;
  }
  return absl::OkStatus();
}

}  // namespace tensorflow_ipu
