#include "tensorflow_ipu/kernels/collectives/workers.h"

#include <utility>

#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu {

namespace {

// Never destroyed: threads of programs may outlive static destructors.
struct Current {
  core::Mutex mutex;
  std::shared_ptr<const core::Workers> workers IPU_GUARDED_BY(mutex);
};

Current& TheWorkers() {
  static auto* const current = new Current();
  return *current;
}

}  // namespace

void SetWorkers(std::shared_ptr<const core::Workers> workers) {
  const core::Lock lock(TheWorkers().mutex);
  TheWorkers().workers = std::move(workers);
}

std::shared_ptr<const core::Workers> CurrentWorkers() {
  const core::Lock lock(TheWorkers().mutex);
  return TheWorkers().workers;
}

}  // namespace tensorflow_ipu
