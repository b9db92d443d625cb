#include "tensorflow_ipu/kernels/replicas/random.h"

#include <map>
#include <mutex>

namespace tensorflow_ipu {

namespace {

std::mutex mutex;

// Guarded by mutex. Never destroyed: threads of programs may outlive static destructors.
std::map<int64_t, std::shared_ptr<core::RandomStreams>>& StreamsByDevice() {
  static auto* const streams = new std::map<int64_t, std::shared_ptr<core::RandomStreams>>();
  return *streams;
}

}  // namespace

core::Registry<core::RandomStreams>& RandomStreams() {
  static auto* const streams = new core::Registry<core::RandomStreams>();
  return *streams;
}

std::shared_ptr<core::RandomStreams> RandomStreamsOf(int64_t device) {
  std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<core::RandomStreams>& streams = StreamsByDevice()[device];
  if (streams == nullptr) streams = std::make_shared<core::RandomStreams>();
  return streams;
}

void ForgetSeeds() {
  std::lock_guard<std::mutex> lock(mutex);
  for (const auto& entry : StreamsByDevice()) entry.second->Forget();
}

}  // namespace tensorflow_ipu
