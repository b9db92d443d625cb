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

// The attribute of nodes that a host kernel may compute. Its value specifies when: if the kernel is faster than XLA, or
// whenever a kernel exists.
constexpr char kHostKernelAttribute[] = "_ipu_host_kernel";
constexpr char kWhereverKnown[] = "wherever known";

// The attribute of such a node that is true if the node is in a loop of the program.
constexpr char kInLoopAttribute[] = "_ipu_in_loop";

// Returns true if TensorFlow has a CPU kernel for the node that programs can share.
bool HasHostKernel(const tensorflow::NodeDef& node);

// Returns the shapes of the first `count` results of the node being lowered, or of all results if it has fewer. Returns
// nothing if they depend on unknown values.
std::optional<std::vector<tensorflow::TensorShape>> ResultShapes(tensorflow::XlaOpKernelContext* context, int count);

// Adds a custom call of the host kernel of `node` and returns its first results, which have these shapes. `node` is the
// node being lowered, or the same node with another type `T`. Operands are then converted to that type, and results
// from it. With `always`, the call runs even if its results are unused. Inputs that are read from a stash buffer are
// used in place and not copied.
absl::StatusOr<std::vector<xla::XlaOp>> CallHostKernel(tensorflow::XlaOpKernelContext* context,
                                                       const tensorflow::NodeDef& node,
                                                       const std::vector<tensorflow::TensorShape>& results,
                                                       bool always = false);

// A part of an error message: a text, or a tensor whose elements are printed.
using PartOfMessage = std::variant<std::string, xla::XlaOp>;

// Adds a custom call that ends the run with a message if the scalar `holds` is false, and returns true otherwise. The
// message contains up to `summarize` elements of each tensor.
xla::XlaOp CallAssertion(tensorflow::XlaOpKernelContext* context, xla::XlaOp holds,
                         const std::vector<PartOfMessage>& message, int64_t summarize = 3);

// Lowers the node to a host kernel if the node sums products of float32 over all but the last dimension. Otherwise
// returns false.
bool LowerAsSumOfProducts(tensorflow::XlaOpKernelContext* context);

// Returns the node as text, without the properties that do not affect its kernel. So nodes with the same kernel have
// the same text.
std::string TextOf(const tensorflow::NodeDef& node);

// Returns the op and the name of the node, as messages show them. Also records the user's line that created the node,
// for `LinesOf`. `key` distinguishes nodes of the same name.
std::string NameForMessages(tensorflow::XlaOpKernelContext* context, const std::string& key);

// A slot of a stash buffer: a tensor [depth, ...], and an int32 scalar.
struct StashSlot {
  xla::XlaOp stash;
  xla::XlaOp slot;
};

// Records that `value` was read from that slot.
absl::Status NoteStashSlot(tensorflow::XlaOpKernelContext* context, xla::XlaOp value, const StashSlot& slot);

// Returns the slot that `value` was read from, if it was recorded.
std::optional<StashSlot> StashSlotOf(tensorflow::XlaOpKernelContext* context, xla::XlaOp value);

}  // namespace tensorflow_ipu
