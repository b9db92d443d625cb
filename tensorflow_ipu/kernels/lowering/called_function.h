// Arguments of functions that our operations call.
#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_CALLED_FUNCTION_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_CALLED_FUNCTION_H_

#include "absl/status/status.h"
#include "tensorflow/compiler/tf2xla/xla_compiler.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"

namespace tensorflow_ipu {

// Describes the argument for an input of an operation: a variable, a tensor list or a tensor. Fails for a variable
// without a value.
absl::Status DescribeInput(tensorflow::XlaOpKernelContext* context, int input,
                           tensorflow::XlaCompiler::Argument* argument);

// The operand for an input: the value of a variable, or the tensor.
absl::Status OperandOf(tensorflow::XlaOpKernelContext* context, int input, xla::XlaOp* operand);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_CALLED_FUNCTION_H_
