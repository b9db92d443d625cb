#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_HOST_LAYERS_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_HOST_LAYERS_H_

#include <string>

namespace tensorflow_ipu {

// The ops that host kernels may compute, by line.
const std::string& HostLayers();

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_HOST_LAYERS_H_
