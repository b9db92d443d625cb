#include "tensorflow_ipu/kernels/host/threads.h"

#include <vector>

#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow/core/platform/env.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

const std::vector<const HostThreads*>& ByCount() {
  static const auto* const all = [] {
    auto* const made = new std::vector<const HostThreads*>();
    const int cores = tf::port::MaxParallelism();
    auto* const pool = new tf::thread::ThreadPool(tf::Env::Default(), "ipu-host-kernels", cores);
    for (int count = 1; count <= cores; ++count) made->push_back(new HostThreads(pool->AsEigenThreadPool(), count));
    return made;
  }();
  return *all;
}

}  // namespace

const HostThreads& HostThreads::Of(int64_t count) {
  const std::vector<const HostThreads*>& all = ByCount();
  const auto most = static_cast<int64_t>(all.size());
  return *all[(count < 1 || count > most ? most : count) - 1];
}

void HostThreads::Divide(int64_t count, const std::function<void(int64_t)>& run) const {
  constexpr double kMany = 1e9;  // Cycles, so that each is worth a thread.
  device()->parallelFor(count, Eigen::TensorOpCost(0, 0, kMany), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) run(i);
  });
}

HostThreads::HostThreads(Eigen::ThreadPoolInterface* pool, int count) : pool_(pool, count), named_(&pool_) {
  workers_.num_threads = count;
  workers_.workers = &named_;
}

}  // namespace tensorflow_ipu
