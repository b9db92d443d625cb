#include "tensorflow_ipu/kernels/replicas/faults.h"

#include <map>
#include <utility>

#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu {

namespace {

using Place = std::pair<const core::RandomStreams*, int64_t>;

struct Faults {
  core::Mutex mutex;
  std::map<Place, std::string> of IPU_GUARDED_BY(mutex);
};

Faults& AllFaults() {
  static auto* const all = new Faults();
  return *all;
}

}  // namespace

void NoteFault(const core::RandomStreams* device, int64_t replica, std::string fault) {
  Faults& all = AllFaults();
  const core::Lock lock(all.mutex);
  all.of.emplace(Place(device, replica), std::move(fault));
}

std::optional<std::string> TakeFault(const core::RandomStreams* device, int64_t replica) {
  Faults& all = AllFaults();
  const core::Lock lock(all.mutex);
  const auto found = all.of.find(Place(device, replica));
  if (found == all.of.end()) return std::nullopt;
  std::string fault = std::move(found->second);
  all.of.erase(found);
  return fault;
}

}  // namespace tensorflow_ipu
