// What of a network's layers a program computes by kernels of the host.
#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_HOST_LAYERS_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_HOST_LAYERS_H_

#include <string>

namespace tensorflow_ipu {

// The ops that they may serve, by line.
const std::string& HostLayers();

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_HOST_LAYERS_H_
