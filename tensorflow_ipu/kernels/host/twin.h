// oneDNN's kernels for a node of TensorFlow's.
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

// Whether oneDNN computes layers of this type, forward and gradients, on this processor, in code that was made for it.
bool OneDnnComputes(tensorflow::DataType type);

// The kernel that TensorFlow puts in the place of its own where it uses oneDNN. TensorFlow does so on processors with
// AVX-512 alone, or as `TF_ENABLE_ONEDNN_OPTS` says; but oneDNN's are faster on those without as well.
//
// Thread-safe.
class Twin {
 public:
  // Null where oneDNN has nothing for the node, or not for its type on this processor.
  static std::unique_ptr<const Twin> Of(const tensorflow::OpDef& op, const tensorflow::NodeDef& node);

  Twin(std::unique_ptr<tensorflow::OpKernel> kernel, std::unique_ptr<tensorflow::OpKernel> forward)
      : kernel_(std::move(kernel)), forward_(std::move(forward)) {}

  // What it gives for the inputs of the node: the node's results first. It refuses some of what TensorFlow's own takes.
  absl::StatusOr<Tensors> Compute(absl::Span<const tensorflow::Tensor> inputs, KernelDevice* device,
                                  std::size_t lent) const;

 private:
  const std::unique_ptr<tensorflow::OpKernel> kernel_;
  // What computes the workspace of a gradient: the places of the maxima, which TensorFlow's own has as no result.
  const std::unique_ptr<tensorflow::OpKernel> forward_;
};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_TWIN_H_
