// Lowers a node of a program to a call of TensorFlow's CPU kernel for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tensorflow_ipu {

// The attribute of nodes that a host kernel may compute. Its value says when: where the kernel is faster than XLA, or
// wherever it can.
constexpr char kHostKernelAttribute[] = "_ipu_host_kernel";
constexpr char kWhereverKnown[] = "wherever known";

// The attribute of such a node that says whether it is in a loop of the program.
constexpr char kInLoopAttribute[] = "_ipu_in_loop";

// Whether TensorFlow has a CPU kernel for the node that programs can share.
bool HasHostKernel(const tensorflow::NodeDef& node);

// The shapes of the first `count` results of the node being lowered (at most as many as it has); nothing where they
// depend on unknown values.
std::optional<std::vector<tensorflow::TensorShape>> ResultShapes(tensorflow::XlaOpKernelContext* context, int count);

// Adds a custom call of the host kernel of `node` and returns its first results, which have these shapes. `node` is the
// node being lowered, or the same of another type `T`, to which operands and from which results are converted. With
// `always`, it runs even if its results are unused. Inputs that are read from a stash buffer are used in place and not
// copied.
absl::StatusOr<std::vector<xla::XlaOp>> CallHostKernel(tensorflow::XlaOpKernelContext* context,
                                                       const tensorflow::NodeDef& node,
                                                       const std::vector<tensorflow::TensorShape>& results,
                                                       bool always = false);

// A text, or a tensor whose elements are in the message.
using PartOfMessage = std::variant<std::string, xla::XlaOp>;

// Adds a custom call that ends the run with a message if the scalar `holds` is false, and else returns true. The
// message has as many elements of each tensor as `summarize` says.
xla::XlaOp CallAssertion(tensorflow::XlaOpKernelContext* context, xla::XlaOp holds,
                         const std::vector<PartOfMessage>& message, int64_t summarize = 3);

// Lowers the node to a kernel of the host if it sums products of float32 over all but the last dimension. Returns
// whether it did.
bool LowerAsSumOfProducts(tensorflow::XlaOpKernelContext* context);

// The node without what does not affect its kernel, so that nodes of the same kernel have the same text.
std::string TextOf(const tensorflow::NodeDef& node);

// The name of the node being lowered in messages: its op and its name. `LinesOf` finds the user's line that made it by
// this name and by `key`, which tells it from other nodes of that name.
std::string NameForMessages(tensorflow::XlaOpKernelContext* context, const std::string& key);

// A slot of a stash buffer: a tensor [depth, ...], and an int32 scalar.
struct StashSlot {
  xla::XlaOp stash;
  xla::XlaOp slot;
};

// Notes that `value` was read from that slot.
absl::Status NoteStashSlot(tensorflow::XlaOpKernelContext* context, xla::XlaOp value, const StashSlot& slot);

// The slot that `value` was read from, if it was noted.
std::optional<StashSlot> StashSlotOf(tensorflow::XlaOpKernelContext* context, xla::XlaOp value);

}  // namespace tensorflow_ipu
