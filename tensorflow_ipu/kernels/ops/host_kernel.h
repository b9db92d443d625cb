// Lowers a node of a program to a call of the kernel that TensorFlow has for it on the CPU.
#ifndef TENSORFLOW_IPU_KERNELS_OPS_HOST_KERNEL_H_
#define TENSORFLOW_IPU_KERNELS_OPS_HOST_KERNEL_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tensorflow_ipu {

// The attribute that a node of a program has where a kernel of the host may serve it, which says when: where it is
// faster than XLA, or wherever it can.
constexpr char kHostKernelAttribute[] = "_ipu_host_kernel";
constexpr char kWhereverKnown[] = "wherever known";

// The attribute of such a node that says whether it is in a loop of the program.
constexpr char kInLoopAttribute[] = "_ipu_in_loop";

// Whether TensorFlow has a kernel for the node on the CPU that programs can share.
bool HasHostKernel(tensorflow::XlaOpKernelContext* context);

// The shapes of the results of the node that is being lowered; nothing where they depend on values that are not known.
std::optional<std::vector<tensorflow::TensorShape>> ResultShapes(tensorflow::XlaOpKernelContext* context);

// Lowers the node to a custom call of its kernel of the host.
absl::Status CallHostKernel(tensorflow::XlaOpKernelContext* context,
                            const std::vector<tensorflow::TensorShape>& results);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_OPS_HOST_KERNEL_H_
