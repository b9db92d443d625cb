// TensorFlow's kernels on memory of others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_ipu/kernels/host/device.h"
#include "tensorflow_ipu/kernels/host/threads.h"

namespace tensorflow_ipu {

// Whether oneDNN has native code for layers of this type on this processor.
bool OneDnnComputes(tensorflow::DataType type);

// The type in which the host's kernels compute layers: float32 for smaller types that they compute slowly.
tensorflow::DataType ComputedType(tensorflow::DataType type);

// TensorFlow uses these kernels with AVX-512 or `TF_ENABLE_ONEDNN_OPTS` alone, but they are faster on other processors
// as well. Thread-safe.
class OneDnnKernel {
 public:
  // Null where oneDNN has no kernel for the node or its type on this processor.
  static std::unique_ptr<const OneDnnKernel> Of(const tensorflow::OpDef& op, const tensorflow::NodeDef& node);

  OneDnnKernel(std::unique_ptr<tensorflow::OpKernel> kernel, std::unique_ptr<tensorflow::OpKernel> forward)
      : kernel_(std::move(kernel)), forward_(std::move(forward)) {}

  // The node's results come first. Fails for some inputs that TensorFlow's kernel takes.
  absl::StatusOr<Tensors> Compute(absl::Span<const tensorflow::Tensor> inputs, KernelDevice* device,
                                  std::size_t lent) const;

 private:
  const std::unique_ptr<tensorflow::OpKernel> kernel_;
  // Computes the workspace of a gradient: the places of the maxima.
  const std::unique_ptr<tensorflow::OpKernel> forward_;
};

// Row-major elements of the kernel's type.
struct HostBuffer {
  void* data;
  std::size_t bytes;
  absl::Span<const int64_t> dimensions;
};

absl::StatusOr<tensorflow::Tensor> CopyOf(tensorflow::DataType type, const HostBuffer& buffer);

class DirectConvolution;

// TensorFlow's CPU kernel for a node, or oneDNN's where there is one and the tensors are large, or the package's own
// convolution. A node names neither, so a program on disk runs the best one of each machine. Shared by all programs,
// replicas and calls, as TensorFlow's executor does; kernels of stateful ops are refused. Thread-safe.
class HostKernel {
 public:
  // `node` is a `NodeDef` in text form, with all attributes.
  static absl::StatusOr<std::shared_ptr<const HostKernel>> Of(const std::string& node);

  HostKernel(std::unique_ptr<tensorflow::OpKernel> own, std::unique_ptr<const OneDnnKernel> onednn,
             std::unique_ptr<const DirectConvolution> direct);
  ~HostKernel();

  // Computes `results` on this thread and those of `threads`. Aligned memory is not copied, if the kernel allocates its
  // results.
  absl::Status Run(absl::Span<const HostBuffer> arguments, absl::Span<const HostBuffer> results,
                   const HostThreads& threads) const;

  // Such as `Conv2D`.
  const std::string& type() const { return own_->def().op(); }

 private:
  const std::unique_ptr<tensorflow::OpKernel> own_;
  const std::unique_ptr<const OneDnnKernel> onednn_;
  const std::unique_ptr<const DirectConvolution> direct_;
  const bool always_onednn_;
};

}  // namespace tensorflow_ipu
