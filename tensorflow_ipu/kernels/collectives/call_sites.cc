#include "tensorflow_ipu/kernels/collectives/call_sites.h"

#include <map>
#include <string>

#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/feeds/infeeds.h"

namespace tensorflow_ipu {

namespace {

// Never destroyed: threads of programs may outlive static destructors.
struct DomainsByDevice {
  core::Mutex mutex;
  std::map<int64_t, std::shared_ptr<core::Domain>> domains IPU_GUARDED_BY(mutex);
};

DomainsByDevice& All() {
  static auto* const all = new DomainsByDevice();
  return *all;
}

bool SomeProgramWaitsForData() {
  for (const auto& infeed : Infeeds().All()) {
    const auto queue = infeed->queue();
    if (queue != nullptr && queue->waiting() > 0) return true;
  }
  return false;
}

}  // namespace

core::Registry<core::CallSite>& CallSites() {
  static auto* const sites = new core::Registry<core::CallSite>();
  return *sites;
}

std::shared_ptr<core::Domain> DomainOf(int64_t device) {
  DomainsByDevice& all = All();
  const core::Lock lock(all.mutex);
  std::shared_ptr<core::Domain>& domain = all.domains[device];
  if (domain == nullptr) {
    domain = std::make_shared<core::Domain>("/device:IPU:" + std::to_string(device), SomeProgramWaitsForData);
  }
  return domain;
}

std::vector<std::shared_ptr<core::Domain>> Domains() {
  DomainsByDevice& all = All();
  const core::Lock lock(all.mutex);
  std::vector<std::shared_ptr<core::Domain>> domains;
  for (const auto& entry : all.domains) domains.push_back(entry.second);
  return domains;
}

}  // namespace tensorflow_ipu
