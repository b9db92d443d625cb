#include "tensorflow_ipu/kernels/host/kernel.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/denormal.h"
#include "tensorflow/core/platform/protobuf.h"
#include "tensorflow/core/platform/setround.h"
#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/host/call.h"
#include "tensorflow_ipu/kernels/host/device.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

// Does not own its memory, so that no kernel reuses it for a result.
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

absl::Status Deliver(const Tensors& given, absl::Span<const HostBuffer> results) {
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

// Kept from call to call of a thread.
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

absl::StatusOr<std::shared_ptr<const HostKernel>> Make(const std::string& text) {
  tf::NodeDef node;
  if (!tf::protobuf::TextFormat::ParseFromString(text, &node)) {
    return absl::InvalidArgumentError(absl::StrCat("`", text, "` is no node."));
  }
  const tf::OpDef* op = nullptr;
  if (absl::Status found = tf::OpRegistry::Global()->LookUpOpDef(node.op(), &op); !found.ok()) return found;
  if (op->is_stateful() && node.op() != "CheckNumerics" && node.op() != "CheckNumericsV2") {  // They can but fail.
    return absl::UnimplementedError(
        absl::StrCat("`", node.op(),
                     "` is stateful: programs and replicas, which share kernels of the host, would share its state."));
  }
  absl::StatusOr<std::unique_ptr<tf::OpKernel>> own = CreateKernel(node);
  if (!own.ok()) return own.status();
  if ((*own)->AsAsync() != nullptr) {
    return absl::UnimplementedError(absl::StrCat("`", node.op(), "` ends on a thread of its own choice."));
  }
  return std::make_shared<const HostKernel>(*std::move(own), Twin::Of(*op, node));
}

// For smaller tensors oneDNN's setup takes longer than the rest, except for narrow types, which TensorFlow's kernels
// compute many times as slowly. Nor is another thread worth its wake.
constexpr std::size_t kLittle = 256 << 10;

bool IsNarrow(tf::DataType type) { return type == tf::DT_BFLOAT16 || type == tf::DT_HALF; }

}  // namespace

HostKernel::HostKernel(std::unique_ptr<tf::OpKernel> own, std::unique_ptr<const Twin> twin)
    : own_(std::move(own)), twin_(std::move(twin)), always_twin_(IsNarrow(own_->output_type(0))) {}

absl::StatusOr<std::shared_ptr<const HostKernel>> HostKernel::Of(const std::string& node) {
  static auto* const mutex = new core::Mutex();
  static auto* const kernels = new std::map<std::string, std::shared_ptr<const HostKernel>>();
  const core::Lock lock(*mutex);
  const auto found = kernels->find(node);
  if (found != kernels->end()) return found->second;
  absl::StatusOr<std::shared_ptr<const HostKernel>> made = Make(node);
  if (made.ok()) kernels->emplace(node, *made);
  return made;
}

absl::Status HostKernel::Run(absl::Span<const HostBuffer> arguments, absl::Span<const HostBuffer> results,
                             const HostThreads& threads) const {
  // As in TensorFlow's executor.
  const tf::port::ScopedFlushDenormal flush;
  const tf::port::ScopedSetRound round(FE_TONEAREST);
  const bool little = BytesOf(arguments) + BytesOf(results) < kLittle;
  const DeviceOfCall device(little ? HostThreads::Of(1) : threads);
  Tensors inputs;
  inputs.reserve(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    inputs.push_back(InputOf(own_->input_type(static_cast<int>(i)), arguments[i]));
  }
  const std::size_t lent = std::min(results.size(), KernelDevice::kLendable);
  for (std::size_t i = 0; i < lent; ++i) device.get()->Lend(i, results[i].data, results[i].bytes);
  if (twin_ != nullptr && (always_twin_ || !little)) {
    const absl::StatusOr<Tensors> given = twin_->Compute(inputs, device.get(), lent);
    if (given.ok()) return Deliver(*given, results);
    // TensorFlow's kernel computes what oneDNN refuses, or reports the error.
  }
  const absl::StatusOr<Tensors> given = Call(own_.get(), inputs, device.get(), lent);
  return given.ok() ? Deliver(*given, results) : given.status();
}

}  // namespace tensorflow_ipu
