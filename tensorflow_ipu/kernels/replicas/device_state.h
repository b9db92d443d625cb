// The objects that the process keeps for each device: random streams, and the floating-point exceptions of its
// replicas.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "tensorflow_ipu/kernels/numerics/random_streams.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"
#include "tensorflow_ipu/kernels/support/registry.h"

namespace tensorflow_ipu {

inline core::Registry<core::RandomStreams>& RandomStreams() {
  return core::NeverDestroyed<core::Registry<core::RandomStreams>>();
}

std::shared_ptr<core::RandomStreams> RandomStreamsOf(int64_t device);

// Returns the error of a program whose streams were deleted.
absl::Status RandomStreamsGone();

void ForgetSeeds();

// The functions below identify a device by its random streams, which programs can refer to. Thread-safe.

// Stores the message of the first floating-point exception of a run; later ones are consequences.
void NoteFault(const core::RandomStreams* device, int64_t replica, std::string fault);

std::optional<std::string> TakeFault(const core::RandomStreams* device, int64_t replica);

}  // namespace tensorflow_ipu
