// Functions that operations of ours call: what TensorFlow's compiler has to know of their arguments.
#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_CALLED_FUNCTION_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_CALLED_FUNCTION_H_

#include "absl/status/status.h"
#include "tensorflow/compiler/tf2xla/xla_compiler.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"

namespace tensorflow_ipu {

// The argument of a function that an input of an operation is: a variable, a list of tensors, or a tensor.
//
// Fails for a variable that has no value yet.
absl::Status DescribeInput(tensorflow::XlaOpKernelContext* context, int input,
                           tensorflow::XlaCompiler::Argument* argument);

// What a computation takes for an input: of a variable its value.
absl::Status OperandOf(tensorflow::XlaOpKernelContext* context, int input, xla::XlaOp* operand);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_CALLED_FUNCTION_H_
