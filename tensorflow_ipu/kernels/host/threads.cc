#include "tensorflow_ipu/kernels/host/threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow_ipu/kernels/core/waiting.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

const std::vector<const HostThreads*>& ByCount() {
  static const auto* const all = [] {
    auto* const made = new std::vector<const HostThreads*>();
    const int cores = tf::port::MaxParallelism();
    auto* const pool = new tf::thread::ThreadPool(tf::Env::Default(), "ipu-host-kernels", cores);
    for (int count = 1; count < cores; ++count) made->push_back(new HostThreads(pool, count));
    made->push_back(new HostThreads(pool));
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

HostThreads::HostThreads(tf::thread::ThreadPool* pool)
    : all_(std::make_unique<Eigen::ThreadPoolDevice>(pool->AsEigenThreadPool(), pool->NumThreads())),
      device_(all_.get()) {
  workers_.num_threads = pool->NumThreads();
  workers_.workers = pool;
}

HostThreads::HostThreads(tf::thread::ThreadPool* pool, int count)
    : fewer_(std::make_unique<FewerThreads>(pool->AsEigenThreadPool(), count)),
      named_(std::make_unique<tf::thread::ThreadPool>(fewer_.get())),
      device_(fewer_->device()) {
  workers_.num_threads = count;
  workers_.workers = named_.get();
}

void CallThreads::Divide(int64_t parts, const std::function<void(int64_t)>& run) const {
  // Threads that come late see that no part is left.
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
  constexpr std::chrono::microseconds kSpin{100};  // A sleep and a wake take as long.
  const std::shared_ptr<Work> work(new Work{&run, parts});
  for (int64_t thread = 1; thread < std::min(parts, count_); ++thread) pool_->Schedule([work] { work->Do(); });
  work->Do();
  if (!core::SpinUntil(kSpin, [&] { return work->all_done.HasBeenNotified(); })) work->all_done.WaitForNotification();
}

void CallThreads::DivideRange(int64_t count, double cycles, const std::function<void(int64_t, int64_t)>& run) const {
  constexpr double kCyclesOfPart = 40000;  // Some 10 us.
  constexpr int64_t kPartsOfThread = 4;
  const auto worth = static_cast<int64_t>(static_cast<double>(count) * cycles / kCyclesOfPart);
  const int64_t parts = std::clamp<int64_t>(std::min(worth, count), 1, kPartsOfThread * count_);
  Divide(parts, [&](int64_t part) { run(part * count / parts, (part + 1) * count / parts); });
}

}  // namespace tensorflow_ipu
