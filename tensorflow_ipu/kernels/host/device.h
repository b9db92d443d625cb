// The device on which host kernels run, and a function that calls a kernel.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device_attributes.pb.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/device_name_utils.h"
#include "tensorflow_ipu/kernels/host/threads.h"

namespace tensorflow_ipu {

// An allocator that returns the lent memory for the first allocation of exactly that size, and TensorFlow's memory for
// all others. Thread-safe, except for Lend.
class LentMemory : public tensorflow::Allocator {
 public:
  // The caller makes sure that the memory lent before is free.
  void Lend(void* data, std::size_t bytes);

  std::string Name() override { return "ipu_program"; }
  void* AllocateRaw(std::size_t alignment, std::size_t bytes) override;
  void DeallocateRaw(void* data) override;

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::atomic<bool> free_{false};
};

// Runs one call at a time, which may use several threads.
class KernelDevice : public tensorflow::DeviceBase {
 public:
  KernelDevice();

  static constexpr std::size_t kLendable = 255;

  void Begin(const HostThreads& threads) { threads_ = &threads; }

  // Lends memory for the next tensor that is allocated with `OfResult(result)`.
  void Lend(std::size_t result, void* data, std::size_t bytes);
  static tensorflow::AllocatorAttributes OfResult(std::size_t result);

  const CpuWorkerThreads* tensorflow_cpu_worker_threads() const override { return threads_->workers(); }
  bool has_eigen_cpu_device() const override { return true; }
  const Eigen::ThreadPoolDevice* eigen_cpu_device() override { return threads_->device(); }
  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override;
  const tensorflow::DeviceAttributes& attributes() const override;
  const std::string& name() const override { return attributes().name(); }
  const std::string& device_type() const override { return attributes().device_type(); }
  const tensorflow::DeviceNameUtils::ParsedName& parsed_name() const override;
  absl::Status MakeTensorFromProto(const tensorflow::TensorProto& proto, tensorflow::AllocatorAttributes attributes,
                                   tensorflow::Tensor* tensor) override;

 private:
  const HostThreads* threads_ = &HostThreads::Of(0);
  std::vector<std::unique_ptr<LentMemory>> results_;
};

using Tensors = absl::InlinedVector<tensorflow::Tensor, 4>;

// `node` must have values for all attributes of its op.
absl::StatusOr<std::unique_ptr<tensorflow::OpKernel>> CreateKernel(const tensorflow::NodeDef& node);

// Runs a kernel. The first `lent` results use memory that was lent to the device.
absl::StatusOr<Tensors> Call(tensorflow::OpKernel* kernel, absl::Span<const tensorflow::Tensor> inputs,
                             KernelDevice* device, std::size_t lent);

}  // namespace tensorflow_ipu
