// A call of one of TensorFlow's kernels.
#ifndef TENSORFLOW_IPU_KERNELS_HOST_CALL_H_
#define TENSORFLOW_IPU_KERNELS_HOST_CALL_H_

#include <cstddef>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow_ipu/kernels/host/device.h"

namespace tensorflow_ipu {

using Tensors = absl::InlinedVector<tensorflow::Tensor, 4>;

// The node has all of its attributes.
absl::StatusOr<std::unique_ptr<tensorflow::OpKernel>> CreateKernel(const tensorflow::NodeDef& node);

// The first `lent` results use memory that was lent to the device.
absl::StatusOr<Tensors> Call(tensorflow::OpKernel* kernel, absl::Span<const tensorflow::Tensor> inputs,
                             KernelDevice* device, std::size_t lent);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_CALL_H_
