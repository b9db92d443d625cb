// The fault that stopped each replica of a device.
#ifndef TENSORFLOW_IPU_KERNELS_REPLICAS_FAULTS_H_
#define TENSORFLOW_IPU_KERNELS_REPLICAS_FAULTS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "tensorflow_ipu/kernels/core/random_streams.h"

namespace tensorflow_ipu {

// A device is identified by its random streams, which programs know. Thread-safe.

// Keeps the first fault of a run; later ones follow from it.
void NoteFault(const core::RandomStreams* device, int64_t replica, std::string fault);

std::optional<std::string> TakeFault(const core::RandomStreams* device, int64_t replica);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_REPLICAS_FAULTS_H_
