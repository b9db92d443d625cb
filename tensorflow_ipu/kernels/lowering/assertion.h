// Lowers an assertion to a custom call that ends the run where it does not hold.
#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_ASSERTION_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_ASSERTION_H_

#include "absl/status/status.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"

namespace tensorflow_ipu {

// The attribute of an `Assert` in a program with the texts among its data, which a program cannot hold, in their order.
constexpr char kTextsAttribute[] = "_ipu_texts";

absl::Status CallAssertion(tensorflow::XlaOpKernelContext* context);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_ASSERTION_H_
