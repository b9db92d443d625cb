#include "tensorflow_ipu/kernels/replicas/random.h"

#include <map>

#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu {

namespace {

// Never destroyed: threads of programs may outlive static destructors.
struct StreamsByDevice {
  core::Mutex mutex;
  std::map<int64_t, std::shared_ptr<core::RandomStreams>> streams IPU_GUARDED_BY(mutex);
};

StreamsByDevice& All() {
  static auto* const all = new StreamsByDevice();
  return *all;
}

}  // namespace

core::Registry<core::RandomStreams>& RandomStreams() {
  static auto* const streams = new core::Registry<core::RandomStreams>();
  return *streams;
}

std::shared_ptr<core::RandomStreams> RandomStreamsOf(int64_t device) {
  StreamsByDevice& all = All();
  const core::Lock lock(all.mutex);
  std::shared_ptr<core::RandomStreams>& streams = all.streams[device];
  if (streams == nullptr) streams = std::make_shared<core::RandomStreams>();
  return streams;
}

core::Outcome RandomStreamsGone() {
  return core::Outcome::NotFound("The random numbers of this program were deleted with the function that was traced.");
}

void ForgetSeeds() {
  StreamsByDevice& all = All();
  const core::Lock lock(all.mutex);
  for (const auto& entry : all.streams) entry.second->Forget();
}

}  // namespace tensorflow_ipu
