#include "tensorflow_ipu/kernels/replicas/device_state.h"

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"

namespace tensorflow_ipu {

namespace {

core::Registry<core::RandomStreams>& Streams() { return core::NeverDestroyed<core::Registry<core::RandomStreams>>(); }

}  // namespace

std::shared_ptr<core::RandomStreams> RandomStreamsOf(int64_t device) {
  return Streams().Of(device, [] { return std::make_shared<core::RandomStreams>(); });
}

absl::Status RandomStreamsGone() {
  return absl::NotFoundError("The random streams of this program were deleted with the traced function.");
}

void ForgetSeeds() {
  for (const auto& streams : Streams().All()) streams->Forget();
}

namespace {

using Place = std::pair<const core::RandomStreams*, int64_t>;

struct Faults {
  absl::Mutex mutex;
  std::map<Place, std::string> of ABSL_GUARDED_BY(mutex);
};

Faults& AllFaults() { return core::NeverDestroyed<Faults>(); }

}  // namespace

void NoteFault(const core::RandomStreams* device, int64_t replica, std::string fault) {
  Faults& all = AllFaults();
  const absl::MutexLock lock(&all.mutex);
  all.of.emplace(Place(device, replica), std::move(fault));
}

std::optional<std::string> TakeFault(const core::RandomStreams* device, int64_t replica) {
  Faults& all = AllFaults();
  const absl::MutexLock lock(&all.mutex);
  const auto found = all.of.find(Place(device, replica));
  if (found == all.of.end()) return std::nullopt;
  std::string fault = std::move(found->second);
  all.of.erase(found);
  return fault;
}

}  // namespace tensorflow_ipu
