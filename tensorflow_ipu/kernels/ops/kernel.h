// Kernels of ops of the host that are plain functions.
#pragma once

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow_ipu {

template <absl::Status (*kCompute)(tensorflow::OpKernelContext*)>
class FunctionOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override { OP_REQUIRES_OK(context, kCompute(context)); }
};

}  // namespace tensorflow_ipu
