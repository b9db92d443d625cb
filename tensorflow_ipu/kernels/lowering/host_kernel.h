// Lowers a node of a program to a call of the kernel that TensorFlow has for it on the CPU.
#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_HOST_KERNEL_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_HOST_KERNEL_H_

#include <optional>
#include <string>
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

// The shapes of the first `count` results of the node that is being lowered, or of all that it has; nothing where they
// depend on values that are not known.
std::optional<std::vector<tensorflow::TensorShape>> ResultShapes(tensorflow::XlaOpKernelContext* context, int count);

// Lowers the node to a custom call of its kernel of the host, for the first results, which have these shapes. Others
// are empty. With `always`, it runs though nothing uses its results. An input that is read from a ring is taken where
// it is there, and not copied.
absl::Status CallHostKernel(tensorflow::XlaOpKernelContext* context,
                            const std::vector<tensorflow::TensorShape>& results, bool always = false);

// A node without what has no bearing on its kernel, so that nodes of the same kernel have the same text.
std::string TextOf(const tensorflow::NodeDef& node);

// What messages call the node that is being lowered: its op and its name. `LinesOf` finds the line of the user's that
// made it by this name and by `key`: what the program has of the node that tells it from others of the name.
std::string NameForMessages(tensorflow::XlaOpKernelContext* context, const std::string& key);

// A text as it is written in the attributes of a custom call.
std::string QuotedAttribute(const std::string& text);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_HOST_KERNEL_H_
