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

// A pool that reports fewer threads than it has. XLA and its libraries divide an operation by the number of threads
// that the pool reports. Thread-safe. Must not outlive the pool.
class FewerThreads : public tensorflow::thread::ThreadPoolInterface {
 public:
  FewerThreads(Eigen::ThreadPoolInterface* pool, int count) : pool_(pool), count_(count), device_(this, count) {}

  FewerThreads(const FewerThreads&) = delete;
  FewerThreads& operator=(const FewerThreads&) = delete;

  void Schedule(std::function<void()> part) override { pool_->Schedule(std::move(part)); }
  int NumThreads() const override { return count_; }
  int CurrentThreadId() const override {
    const int id = pool_->CurrentThreadId();
    return id < count_ ? id : -1;  // Callers index arrays of this length by the id.
  }

  const Eigen::ThreadPoolDevice* device() const { return &device_; }

 private:
  Eigen::ThreadPoolInterface* const pool_;
  const int count_;
  const Eigen::ThreadPoolDevice device_;
};

// The threads that a kernel of the host may use.
//
// A kernel runs on a thread of XLA. TensorFlow's kernels wait on that thread for the parts of their work. If the parts
// used XLA's pool, a few kernels could occupy all of its threads and wait forever. So the parts of their work have a
// separate pool. A part never waits, so every kernel ends.
//
// Thread-safe, and never destroyed.
class HostThreads {
 public:
  // Returns the threads of a pool that this package owns. `count` is the number of threads; 0 or too many: all threads.
  static const HostThreads& Of(int64_t count);

  // Registers the pool of the first device, which XLA uses. It must never be destroyed.
  static void Know(Eigen::ThreadPoolInterface* pool);

  HostThreads(Eigen::ThreadPoolInterface* pool, int count);

  // Calls `run` for 0 to `parts` - 1 on this thread and on idle threads of XLA's pool. The threads of that pool spin
  // for a while after an operation. Waking a sleeping thread would take 0.06 to 0.1 ms.
  void Divide(int64_t parts, const std::function<void(int64_t)>& run) const;

  // Calls `run` for ranges that together cover 0 to `count`. `cycles` is the cost of one index.
  void DivideRange(int64_t count, double cycles, const std::function<void(int64_t, int64_t)>& run) const;

  void Copy(void* to, const void* from, std::size_t bytes) const;

  int count() const { return workers_.num_threads; }
  const Eigen::ThreadPoolDevice* device() const { return pool_.device(); }
  const tensorflow::DeviceBase::CpuWorkerThreads* workers() const { return &workers_; }

 private:
  FewerThreads pool_;
  tensorflow::thread::ThreadPool named_;  // The pool, wrapped in the type that TensorFlow's kernels require.
  tensorflow::DeviceBase::CpuWorkerThreads workers_;
};

}  // namespace tensorflow_ipu
