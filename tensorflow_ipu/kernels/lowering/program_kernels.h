// The kernels that lower IPU programs to XLA, as a separate backend. XLA looks up kernels by the name of a backend. The
// compiler of an IPU device uses the name `XLA_IPU_JIT`. That backend has the kernels of `XLA_CPU_JIT`, except for the
// operations that this package lowers itself. Programs of other devices do not use it.
#pragma once

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow_ipu {

constexpr char kProgramBackend[] = "XLA_IPU_JIT";

// Registers the kernel of an op for programs, while the library is loaded. Returns true, for static initializers.
bool RegisterProgramKernel(const char* op, tensorflow::OpKernel* (*make)(tensorflow::OpKernelConstruction*));

template <typename Kernel>
bool RegisterProgramKernel(const char* op) {
  return RegisterProgramKernel(op, [](tensorflow::OpKernelConstruction* construction) -> tensorflow::OpKernel* {
    return new Kernel(construction);
  });
}

// Registers all other kernels of the backend, once. It must be called when a program is about to be compiled:
// afterwards XLA ignores operations of libraries that are loaded later.
void RegisterProgramBackend();

// Lowers a node as on other devices.
void LowerAsXla(tensorflow::XlaOpKernelContext* context);

}  // namespace tensorflow_ipu
