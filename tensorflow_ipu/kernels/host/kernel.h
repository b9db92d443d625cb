// TensorFlow's kernels on memory of others.
#ifndef TENSORFLOW_IPU_KERNELS_HOST_KERNEL_H_
#define TENSORFLOW_IPU_KERNELS_HOST_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_ipu/kernels/host/threads.h"
#include "tensorflow_ipu/kernels/host/twin.h"

namespace tensorflow_ipu {

// Row-major elements of the kernel's type.
struct HostBuffer {
  void* data;
  std::size_t bytes;
  absl::Span<const int64_t> dimensions;
};

// TensorFlow's CPU kernel for a node, or oneDNN's where there is one and the tensors are large. A node names neither,
// so a program on disk runs the best one of each machine. Shared by all programs, replicas and calls, as TensorFlow's
// executor does; kernels of stateful ops are refused. Thread-safe.
class HostKernel {
 public:
  // `node` is a `NodeDef` in text form, with all attributes.
  static absl::StatusOr<std::shared_ptr<const HostKernel>> Of(const std::string& node);

  HostKernel(std::unique_ptr<tensorflow::OpKernel> own, std::unique_ptr<const Twin> twin);

  // Computes `results` on this thread and those of `threads`. Aligned memory is not copied, if the kernel allocates its
  // results.
  absl::Status Run(absl::Span<const HostBuffer> arguments, absl::Span<const HostBuffer> results,
                   const HostThreads& threads) const;

  // Such as `Conv2D`.
  const std::string& type() const { return own_->def().op(); }

 private:
  const std::unique_ptr<tensorflow::OpKernel> own_;
  const std::unique_ptr<const Twin> twin_;
  const bool always_twin_;
};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_KERNEL_H_
