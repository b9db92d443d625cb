// The call sites of collectives, and the replica group of each device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tensorflow_ipu/kernels/collectives/rendezvous.h"
#include "tensorflow_ipu/kernels/support/registry.h"

namespace tensorflow_ipu {

inline core::Registry<core::CallSite>& CallSites() { return core::NeverDestroyed<core::Registry<core::CallSite>>(); }

std::shared_ptr<core::ReplicaGroup> ReplicaGroupOf(int64_t device);

std::vector<std::shared_ptr<core::ReplicaGroup>> ReplicaGroups();

}  // namespace tensorflow_ipu
