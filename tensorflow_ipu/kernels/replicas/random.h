// The random streams of this process: those of a device, and a number for programs to name them by.
#ifndef TENSORFLOW_IPU_KERNELS_REPLICAS_RANDOM_H_
#define TENSORFLOW_IPU_KERNELS_REPLICAS_RANDOM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tensorflow_ipu/kernels/core/outcome.h"
#include "tensorflow_ipu/kernels/core/random_streams.h"
#include "tensorflow_ipu/kernels/core/registry.h"

namespace tensorflow_ipu {

core::Registry<core::RandomStreams>& RandomStreams();

// The streams of /device:IPU:<device>, made at their first use.
std::shared_ptr<core::RandomStreams> RandomStreamsOf(int64_t device);

// The error of a program that draws from streams that are no more.
core::Outcome RandomStreamsGone();

// Starts the streams of all devices anew.
void ForgetSeeds();

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_REPLICAS_RANDOM_H_
