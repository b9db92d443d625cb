// The threads of host kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#define EIGEN_USE_THREADS

#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow/core/platform/threadpool_interface.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace tensorflow_ipu {

// A pool that says it has fewer threads than it has: XLA and its libraries divide an operation among as many threads as
// the pool says. Thread-safe. Must not outlive the pool.
class FewerThreads : public tensorflow::thread::ThreadPoolInterface {
 public:
  FewerThreads(Eigen::ThreadPoolInterface* pool, int count) : pool_(pool), count_(count), device_(this, count) {}

  FewerThreads(const FewerThreads&) = delete;
  FewerThreads& operator=(const FewerThreads&) = delete;

  void Schedule(std::function<void()> part) override { pool_->Schedule(std::move(part)); }
  int NumThreads() const override { return count_; }
  int CurrentThreadId() const override {
    const int id = pool_->CurrentThreadId();
    return id < count_ ? id : -1;  // Callers have no room for more.
  }

  const Eigen::ThreadPoolDevice* device() const { return &device_; }

 private:
  Eigen::ThreadPoolInterface* const pool_;
  const int count_;
  const Eigen::ThreadPoolDevice device_;
};

// The threads that a kernel of the host may use.
//
// A kernel runs on a thread of XLA. One of TensorFlow waits there for parts of its work, and on XLA's own pool a few
// kernels would hold all threads and wait for ever. So its parts have a pool of their own; a part waits for nobody, so
// every kernel ends.
//
// Thread-safe, and never destroyed.
class HostThreads {
 public:
  // Of a pool of the package. 0 or too many: all threads.
  static const HostThreads& Of(int64_t count);

  // Makes the pool of the first device, which is XLA's, known. It must never be destroyed.
  static void Know(Eigen::ThreadPoolInterface* pool);

  HostThreads(Eigen::ThreadPoolInterface* pool, int count);

  // Calls `run` for 0 to `parts` - 1 on this thread, and on those of XLA's pool that are free meanwhile: they spin
  // after an operation, and to wake a thread takes 0.06 to 0.1 ms.
  void Divide(int64_t parts, const std::function<void(int64_t)>& run) const;

  // The same for ranges of 0 to `count`, of which each number takes so many cycles.
  void DivideRange(int64_t count, double cycles, const std::function<void(int64_t, int64_t)>& run) const;

  void Copy(void* to, const void* from, std::size_t bytes) const;

  int count() const { return workers_.num_threads; }
  const Eigen::ThreadPoolDevice* device() const { return pool_.device(); }
  const tensorflow::DeviceBase::CpuWorkerThreads* workers() const { return &workers_; }

 private:
  FewerThreads pool_;
  tensorflow::thread::ThreadPool named_;  // The pool as TensorFlow's kernels want it.
  tensorflow::DeviceBase::CpuWorkerThreads workers_;
};

}  // namespace tensorflow_ipu
