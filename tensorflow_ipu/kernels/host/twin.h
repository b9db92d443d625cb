// oneDNN's kernels for a node.
#ifndef TENSORFLOW_IPU_KERNELS_HOST_TWIN_H_
#define TENSORFLOW_IPU_KERNELS_HOST_TWIN_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_ipu/kernels/host/call.h"

namespace tensorflow_ipu {

// Whether oneDNN has native code for layers of this type on this processor.
bool OneDnnComputes(tensorflow::DataType type);

// TensorFlow uses these kernels with AVX-512 or `TF_ENABLE_ONEDNN_OPTS` alone, but they are faster on other processors
// as well. Thread-safe.
class Twin {
 public:
  // Null where oneDNN has no kernel for the node or its type on this processor.
  static std::unique_ptr<const Twin> Of(const tensorflow::OpDef& op, const tensorflow::NodeDef& node);

  Twin(std::unique_ptr<tensorflow::OpKernel> kernel, std::unique_ptr<tensorflow::OpKernel> forward)
      : kernel_(std::move(kernel)), forward_(std::move(forward)) {}

  // The node's results come first. Fails for some inputs that TensorFlow's kernel takes.
  absl::StatusOr<Tensors> Compute(absl::Span<const tensorflow::Tensor> inputs, KernelDevice* device,
                                  std::size_t lent) const;

 private:
  const std::unique_ptr<tensorflow::OpKernel> kernel_;
  // Computes the workspace of a gradient: the places of the maxima.
  const std::unique_ptr<tensorflow::OpKernel> forward_;
};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_TWIN_H_
