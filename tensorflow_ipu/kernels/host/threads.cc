#include "tensorflow_ipu/kernels/host/threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow_ipu/kernels/support/waiting.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

std::atomic<Eigen::ThreadPoolInterface*> pool_of_xla{nullptr};

}  // namespace

const HostThreads& HostThreads::Of(int64_t count) {
  static const auto* const all = [] {
    auto* const threads_by_count = new std::vector<const HostThreads*>();
    const int cores = tf::port::MaxParallelism();
    auto* const pool = new tf::thread::ThreadPool(tf::Env::Default(), "ipu-host-kernels", cores);
    for (int threads = 1; threads <= cores; ++threads) {
      threads_by_count->push_back(new HostThreads(pool->AsEigenThreadPool(), threads));
    }
    return threads_by_count;
  }();
  const auto most = static_cast<int64_t>(all->size());
  return *(*all)[static_cast<std::size_t>((count < 1 || count > most ? most : count) - 1)];
}

void HostThreads::Know(Eigen::ThreadPoolInterface* pool) {
  Eigen::ThreadPoolInterface* none = nullptr;
  pool_of_xla.compare_exchange_strong(none, pool);
}

HostThreads::HostThreads(Eigen::ThreadPoolInterface* pool, int count) : pool_(pool, count), named_(&pool_) {
  workers_.num_threads = count;
  workers_.workers = &named_;
}

void HostThreads::Divide(int64_t parts, const std::function<void(int64_t)>& run) const {
  Eigen::ThreadPoolInterface* const pool = pool_of_xla;
  const int64_t helpers = pool == nullptr ? 0 : std::min<int64_t>(parts, count()) - 1;
  if (helpers < 1) {
    for (int64_t part = 0; part < parts; ++part) run(part);
    return;
  }
  // A thread that starts late finds that no part is left. So this function never waits for a thread that has not
  // started.
  struct Work {
    const std::function<void(int64_t)>* run;
    const int64_t parts;
    std::atomic<int64_t> next{0}, done{0};
    absl::Notification all_done{};

    void Do() {
      for (int64_t part = next++; part < parts; part = next++) {
        (*run)(part);
        if (++done == parts) all_done.Notify();
      }
    }
  };
  constexpr std::chrono::microseconds kSpin{100};  // Sleeping and waking take as long as this.
  const std::shared_ptr<Work> work(new Work{&run, parts});
  for (int64_t helper = 0; helper < helpers; ++helper) pool->Schedule([work] { work->Do(); });
  work->Do();
  if (!core::SpinUntil(kSpin, [&] { return work->all_done.HasBeenNotified(); })) work->all_done.WaitForNotification();
}

void HostThreads::DivideRange(int64_t count, double cycles, const std::function<void(int64_t, int64_t)>& run) const {
  constexpr double kCyclesOfPart = 40000;  // About 10 us.
  constexpr int64_t kPartsOfThread = 4;
  const auto worth = static_cast<int64_t>(static_cast<double>(count) * cycles / kCyclesOfPart);
  const int64_t parts = std::clamp<int64_t>(std::min(worth, count), 1, kPartsOfThread * this->count());
  Divide(parts, [&](int64_t part) { run(part * count / parts, (part + 1) * count / parts); });
}

void HostThreads::Copy(void* to, const void* from, std::size_t bytes) const {
  constexpr double kCycles = 0.1;  // For data in memory, not in a cache.
  DivideRange(static_cast<int64_t>(bytes), kCycles, [&](int64_t first, int64_t last) {
    std::memcpy(static_cast<char*>(to) + first, static_cast<const char*>(from) + first,
                static_cast<std::size_t>(last - first));
  });
}

}  // namespace tensorflow_ipu
