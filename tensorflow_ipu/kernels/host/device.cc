#include "tensorflow_ipu/kernels/host/device.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/public/version.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

// The first of the bits of `AllocatorAttributes::value` that TensorFlow reserves for devices.
constexpr int kDeviceBits = 24;

}  // namespace

void LentMemory::Lend(void* data, std::size_t bytes) {
  data_ = data;
  bytes_ = bytes;
  free_ = true;
}

void* LentMemory::AllocateRaw(std::size_t alignment, std::size_t bytes) {
  const bool fits = bytes == bytes_ && reinterpret_cast<std::uintptr_t>(data_) % alignment == 0;
  if (fits && free_.exchange(false)) return data_;
  return tf::cpu_allocator()->AllocateRaw(alignment, bytes);
}

void LentMemory::DeallocateRaw(void* data) {
  if (data == data_) {
    free_ = true;
  } else {
    tf::cpu_allocator()->DeallocateRaw(data);
  }
}

KernelDevice::KernelDevice() : DeviceBase(tf::Env::Default()) {}

void KernelDevice::Lend(std::size_t result, void* data, std::size_t bytes) {
  while (results_.size() <= result) results_.push_back(std::make_unique<LentMemory>());
  results_[result]->Lend(data, bytes);
}

tf::AllocatorAttributes KernelDevice::OfResult(std::size_t result) {
  tf::AllocatorAttributes attributes;
  attributes.value = static_cast<uint32_t>(result + 1) << kDeviceBits;
  return attributes;
}

tf::Allocator* KernelDevice::GetAllocator(tf::AllocatorAttributes attributes) {
  const std::size_t result = attributes.value >> kDeviceBits;
  return result == 0 ? tf::cpu_allocator() : results_[result - 1].get();
}

const tf::DeviceAttributes& KernelDevice::attributes() const {
  static const auto* const attributes = [] {
    auto* const host = new tf::DeviceAttributes();
    host->set_name("/job:localhost/replica:0/task:0/device:CPU:0");
    host->set_device_type(tf::DEVICE_CPU);
    return host;
  }();
  return *attributes;
}

const tf::DeviceNameUtils::ParsedName& KernelDevice::parsed_name() const {
  static const auto* const parsed = [this] {
    auto* const parts = new tf::DeviceNameUtils::ParsedName();
    tf::DeviceNameUtils::ParseFullName(name(), parts);
    return parts;
  }();
  return *parsed;
}

absl::Status KernelDevice::MakeTensorFromProto(const tf::TensorProto& proto, tf::AllocatorAttributes attributes,
                                               tf::Tensor* tensor) {
  tf::Tensor constant(proto.dtype());
  if (!constant.FromProto(GetAllocator(attributes), proto)) {
    return absl::InvalidArgumentError("A constant of the node is malformed.");
  }
  *tensor = std::move(constant);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<tf::OpKernel>> CreateKernel(const tf::NodeDef& node) {
  static auto* const device = new KernelDevice();
  absl::Status status;
  std::unique_ptr<tf::OpKernel> kernel =
      tf::CreateOpKernel(tf::DEVICE_CPU, device, tf::cpu_allocator(), node, TF_GRAPH_DEF_VERSION, &status);
  TF_RETURN_IF_ERROR(status);
  return kernel;
}

absl::StatusOr<Tensors> Call(tf::OpKernel* kernel, absl::Span<const tf::Tensor> inputs, KernelDevice* device,
                             std::size_t lent) {
  absl::InlinedVector<tf::TensorValue, 4> values;
  values.reserve(inputs.size());
  // A kernel may reuse an input whose memory it owns exclusively. It does not own a program's memory.
  for (const tf::Tensor& input : inputs) values.emplace_back(const_cast<tf::Tensor*>(&input));
  const absl::InlinedVector<tf::AllocatorAttributes, 4> input_attributes(inputs.size());
  absl::InlinedVector<tf::AllocatorAttributes, 4> output_attributes(kernel->num_outputs());
  for (std::size_t i = 0; i < std::min(lent, output_attributes.size()); ++i) {
    output_attributes[i] = KernelDevice::OfResult(i);
  }
  tf::OpKernelContext::Params params;
  params.device = device;
  params.op_kernel = kernel;
  params.inputs = values;
  params.input_alloc_attrs = input_attributes;
  params.output_attr_array = output_attributes.data();
  tf::OpKernelContext context(&params, kernel->num_outputs());
  kernel->Compute(&context);
  if (!context.status().ok()) return context.status();
  Tensors results;
  for (int i = 0; i < kernel->num_outputs(); ++i) {
    const tf::Tensor* const result = context.mutable_output(i);
    if (result == nullptr) return absl::InternalError(absl::StrCat("The kernel returned no output ", i, "."));
    results.push_back(*result);
  }
  return results;
}

}  // namespace tensorflow_ipu
