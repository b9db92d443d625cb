#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_COMPILATIONS_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_COMPILATIONS_H_

#include "tensorflow_ipu/kernels/core/samples.h"

namespace tensorflow_ipu {

// The times of all compilations of this process since this library was loaded, from graph to machine code.
const core::Samples& CompileTimes();

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_COMPILATIONS_H_
