// The variables that hold the states of a program (see core/program_state.h).
#ifndef TENSORFLOW_IPU_KERNELS_REPLICAS_PROGRAM_STATES_H_
#define TENSORFLOW_IPU_KERNELS_REPLICAS_PROGRAM_STATES_H_

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow_ipu/kernels/core/program_state.h"

namespace tensorflow_ipu {

tensorflow::Tensor TensorOf(const core::ProgramState& state);

// Restores the states of a compiled program that failed: XLA may have reused the memory of the values to assign. Skips
// states that a later run holds, which restores them if it fails too.
void RestoreStates(tensorflow::OpKernelContext* context);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_REPLICAS_PROGRAM_STATES_H_
