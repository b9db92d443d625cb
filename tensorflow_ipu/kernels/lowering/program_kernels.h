// The kernels by which IPU programs are lowered to XLA: a backend of their own.
//
// XLA's compiler looks kernels up by the name of a backend. The compiler of an IPU device asks for `XLA_IPU_JIT`, which
// has the kernels of `XLA_CPU_JIT` but for those operations that we lower otherwise. Programs of other devices do not
// see it.
#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_PROGRAM_KERNELS_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_PROGRAM_KERNELS_H_

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow_ipu {

constexpr char kProgramBackend[] = "XLA_IPU_JIT";

// Registers how programs lower an operation, while the library is loaded. Always true, for static initializers.
bool RegisterProgramKernel(const char* op, tensorflow::OpKernel* (*make)(tensorflow::OpKernelConstruction*));

template <typename Kernel>
bool RegisterProgramKernel(const char* op) {
  return RegisterProgramKernel(op, [](tensorflow::OpKernelConstruction* construction) -> tensorflow::OpKernel* {
    return new Kernel(construction);
  });
}

// Registers all other kernels of the backend, once. Not before a program is about to be compiled: from then on XLA
// takes no operations of libraries that are loaded later.
void RegisterProgramBackend();

// Lowers a node as programs of other devices do.
void LowerAsXla(tensorflow::XlaOpKernelContext* context);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_PROGRAM_KERNELS_H_
