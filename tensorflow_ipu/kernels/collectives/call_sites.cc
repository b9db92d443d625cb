#include "tensorflow_ipu/kernels/collectives/call_sites.h"

#include <map>
#include <string>

#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/feeds/feeds.h"

namespace tensorflow_ipu {

namespace {

struct ReplicaGroupsByDevice {
  core::Mutex mutex;
  std::map<int64_t, std::shared_ptr<core::ReplicaGroup>> replica_groups IPU_GUARDED_BY(mutex);
};

ReplicaGroupsByDevice& All() { return core::NeverDestroyed<ReplicaGroupsByDevice>(); }

bool SomeProgramWaitsForData() {
  for (const auto& infeed : Infeeds().All()) {
    const auto queue = infeed->queue();
    if (queue != nullptr && queue->waiting() > 0) return true;
  }
  return false;
}

}  // namespace

std::shared_ptr<core::ReplicaGroup> ReplicaGroupOf(int64_t device) {
  ReplicaGroupsByDevice& all = All();
  const core::Lock lock(all.mutex);
  std::shared_ptr<core::ReplicaGroup>& replica_group = all.replica_groups[device];
  if (replica_group == nullptr) {
    replica_group =
        std::make_shared<core::ReplicaGroup>("/device:IPU:" + std::to_string(device), SomeProgramWaitsForData);
  }
  return replica_group;
}

std::vector<std::shared_ptr<core::ReplicaGroup>> ReplicaGroups() {
  ReplicaGroupsByDevice& all = All();
  const core::Lock lock(all.mutex);
  std::vector<std::shared_ptr<core::ReplicaGroup>> replica_groups;
  for (const auto& entry : all.replica_groups) replica_groups.push_back(entry.second);
  return replica_groups;
}

}  // namespace tensorflow_ipu
