// TensorFlow's CPU kernels, run on the memory of programs.
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

// Returns true if oneDNN has native code for layers of this type on this processor.
bool OneDnnComputes(tensorflow::DataType type);

// Returns the type in which the host's kernels compute layers of type `type`: float32 for float16 and bfloat16 if
// oneDNN does not compute them on this processor, else `type`.
tensorflow::DataType ComputedType(tensorflow::DataType type);

// A kernel of oneDNN. TensorFlow uses these kernels only with AVX-512 or `TF_ENABLE_ONEDNN_OPTS`, but they are faster
// on other processors as well. Thread-safe.
class OneDnnKernel {
 public:
  // Returns null if oneDNN has no kernel for the node or its type on this processor.
  static std::unique_ptr<const OneDnnKernel> Of(const tensorflow::OpDef& op, const tensorflow::NodeDef& node);

  OneDnnKernel(std::unique_ptr<tensorflow::OpKernel> kernel, std::unique_ptr<tensorflow::OpKernel> forward)
      : kernel_(std::move(kernel)), forward_(std::move(forward)) {}

  // Returns the results of the node, which further results of oneDNN's kernel may follow. Fails for some inputs that
  // TensorFlow's kernel accepts.
  absl::StatusOr<Tensors> Compute(absl::Span<const tensorflow::Tensor> inputs, KernelDevice* device,
                                  std::size_t lent) const;

 private:
  const std::unique_ptr<tensorflow::OpKernel> kernel_;
  // Computes the workspace of a gradient: the positions of the maxima.
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

// Computes a node by TensorFlow's CPU kernel, by oneDNN's kernel if there is one and the tensors are large, or by this
// package's convolution. The node does not name the kernel, so a stored program uses the best kernel of each machine.
// All programs, replicas and calls share a kernel, as in TensorFlow's executor. Kernels of stateful ops are rejected.
// Thread-safe.
class HostKernel {
 public:
  // `node` is a `NodeDef` in text form, with all attributes.
  static absl::StatusOr<std::shared_ptr<const HostKernel>> Of(const std::string& node);

  HostKernel(std::unique_ptr<tensorflow::OpKernel> own, std::unique_ptr<const OneDnnKernel> onednn,
             std::unique_ptr<const DirectConvolution> direct);
  ~HostKernel();

  // Computes `results` on this thread and on `threads`. Aligned memory is not copied, provided that the kernel
  // allocates its results.
  absl::Status Run(absl::Span<const HostBuffer> arguments, absl::Span<const HostBuffer> results,
                   const HostThreads& threads) const;

  // Returns the type of the op, such as `Conv2D`.
  const std::string& type() const { return own_->def().op(); }

 private:
  const std::unique_ptr<tensorflow::OpKernel> own_;
  const std::unique_ptr<const OneDnnKernel> onednn_;
  const std::unique_ptr<const DirectConvolution> direct_;
  const bool always_onednn_;
};

}  // namespace tensorflow_ipu
