// The workers that run programs together with this process, if there are any.
#ifndef TENSORFLOW_IPU_KERNELS_COLLECTIVES_WORKERS_H_
#define TENSORFLOW_IPU_KERNELS_COLLECTIVES_WORKERS_H_

#include <memory>

#include "tensorflow_ipu/kernels/core/network.h"

namespace tensorflow_ipu {

// Null: this process is alone, as at first.
void SetWorkers(std::shared_ptr<const core::Workers> workers);

std::shared_ptr<const core::Workers> CurrentWorkers();

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_COLLECTIVES_WORKERS_H_
