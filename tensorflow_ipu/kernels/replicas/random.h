// The random streams of the devices.
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

std::shared_ptr<core::RandomStreams> RandomStreamsOf(int64_t device);

// For a program whose streams were deleted.
core::Outcome RandomStreamsGone();

void ForgetSeeds();

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_REPLICAS_RANDOM_H_
