// Turns an op that uses what a state names into a custom call that takes the state and returns it advanced.
#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_CUSTOM_CALL_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_CUSTOM_CALL_H_

#include <string>
#include <vector>

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tensorflow_ipu {

// An op with a state and with results is to be registered with `IsMetadataOp()`: it ends TensorFlow's search for inputs
// that have to be compile-time constants. Where a result is used as an index, say, the search would otherwise come to
// the state, take its present value for part of the program, and have each replica and each run compile its own.

struct CallOptions {
  // Result i takes the memory of operand i, which has its shape. XLA copies what is used elsewhere.
  bool in_place = false;
  // Whether the state is assigned. XLA lets no condition of a loop do that.
  bool advance = true;
};

// The last input of an op with a state that puts it into the order of the program: none, or the resource of that order,
// which all such ops read and assign in the place of their own states.
#define ORDER_INPUT Input("order: orders * resource").Attr("orders: int >= 0 = 0")

// The inputs of the op between its state, which is input 0, and its order.
std::vector<xla::XlaOp> ValuesOf(tensorflow::XlaOpKernelContext* context);

// Calls `target` with the state in input 0 and `operands`, assigns the state that it returns, and returns its other
// results, of `results`. With an order among the op's inputs (see ORDER_INPUT), that one goes ahead of the state and is
// advanced in its place. `attributes` is an MLIR dictionary. On failure, sets the context's status and returns nothing.
std::vector<xla::XlaOp> CallWithState(tensorflow::XlaOpKernelContext* context, const std::string& target,
                                      const std::vector<xla::XlaOp>& operands, const std::vector<xla::Shape>& results,
                                      const std::string& attributes, const CallOptions& options = {});

// Refuses tensors without elements, of which the machine's streams can carry none.
absl::Status RefuseEmpty(const char* queue, const xla::Shape& shape);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_CUSTOM_CALL_H_
