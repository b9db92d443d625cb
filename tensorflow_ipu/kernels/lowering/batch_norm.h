// Fused batch normalization, and its gradient, lowered straight to XLA: TensorFlow 2.21 lowers each node by way of
// MLIR, which takes 4 to 6 ms and comes to the same. `tests/ops/test_direct_ops.py` compares both.
#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_BATCH_NORM_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_BATCH_NORM_H_

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"

namespace tensorflow_ipu {

// How many results of a `FusedBatchNorm` or `FusedBatchNormGrad`, of any version, hold something on the CPU. The rest
// are for other devices, and empty.
constexpr int kBatchNormResults = 5, kBatchNormGradientResults = 3;

// Lower the node; false, and nothing done, where its statistics are not of float32, which TensorFlow then lowers.
bool LowerBatchNorm(tensorflow::XlaOpKernelContext* context);
bool LowerBatchNormGradient(tensorflow::XlaOpKernelContext* context);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_BATCH_NORM_H_
