#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_POINTWISE_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_POINTWISE_H_

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"

namespace tensorflow_ipu {

// Lowers the node to a product of matrices if it is a convolution by a filter of one element, without strides, groups
// and padding, or a gradient of one. XLA computes the product in half the time of a convolution. Returns whether it
// did.
bool LowerAsProduct(tensorflow::XlaOpKernelContext* context);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_POINTWISE_H_
