#include "tensorflow_ipu/kernels/replicas/call_sites.h"

#include <string>

#include "tensorflow_ipu/kernels/feeds/feeds.h"

namespace tensorflow_ipu {

namespace {

core::Registry<core::ReplicaGroup>& Groups() { return core::NeverDestroyed<core::Registry<core::ReplicaGroup>>(); }

bool SomeProgramWaitsForData() {
  for (const auto& infeed : Infeeds().All()) {
    const auto queue = infeed->queue();
    if (queue != nullptr && queue->waiting() > 0) return true;
  }
  return false;
}

}  // namespace

std::shared_ptr<core::ReplicaGroup> ReplicaGroupOf(int64_t device) {
  return Groups().Of(device, [device] {
    return std::make_shared<core::ReplicaGroup>("/device:IPU:" + std::to_string(device), SomeProgramWaitsForData);
  });
}

std::vector<std::shared_ptr<core::ReplicaGroup>> ReplicaGroups() { return Groups().All(); }

}  // namespace tensorflow_ipu
