// The variables that hold the states of a program (see core/program_state.h).
#ifndef TENSORFLOW_IPU_KERNELS_REPLICAS_PROGRAM_STATES_H_
#define TENSORFLOW_IPU_KERNELS_REPLICAS_PROGRAM_STATES_H_

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow_ipu/kernels/core/program_state.h"

namespace tensorflow_ipu {

tensorflow::Tensor TensorOf(const core::ProgramState& state);

// Writes the first values of those inputs of a kernel that are states: after a compiled program failed midway, XLA may
// have used the memory of what the program was to assign for something else.
//
// Never waits for another run that holds a state: that run began after the failed one, and restores it if it fails too.
void RestoreStates(tensorflow::OpKernelContext* context);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_REPLICAS_PROGRAM_STATES_H_
