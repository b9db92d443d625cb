// What stopped the programs of a device: a text a replica, from the program to its launch.
#ifndef TENSORFLOW_IPU_KERNELS_REPLICAS_FAULTS_H_
#define TENSORFLOW_IPU_KERNELS_REPLICAS_FAULTS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "tensorflow_ipu/kernels/core/random_streams.h"

namespace tensorflow_ipu {

// Faults are of the device whose random streams these are, which programs know. All functions are thread-safe.

// Notes the first fault of a run; later ones follow from it.
void NoteFault(const core::RandomStreams* device, int64_t replica, std::string fault);

// Forgets the fault of a replica, and returns it.
std::optional<std::string> TakeFault(const core::RandomStreams* device, int64_t replica);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_REPLICAS_FAULTS_H_
