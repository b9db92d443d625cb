// The threads of host kernels and of custom calls.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#define EIGEN_USE_THREADS

#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow/core/platform/threadpool_interface.h"
#include "unsupported/Eigen/CXX11/Tensor"
#include "xla/ffi/api/ffi.h"

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

// The threads that one of TensorFlow's kernels may use.
//
// A kernel runs on a thread of XLA and waits there for parts of its work. On XLA's own pool a few kernels would hold
// all threads and wait for ever. So the parts have a pool of their own; a part waits for nobody, so every kernel ends.
//
// Thread-safe, and never destroyed.
class HostThreads {
 public:
  // 0 or too many: all threads.
  static const HostThreads& Of(int64_t count);

  explicit HostThreads(tensorflow::thread::ThreadPool* pool);
  HostThreads(tensorflow::thread::ThreadPool* pool, int count);

  const Eigen::ThreadPoolDevice* device() const { return device_; }
  const tensorflow::DeviceBase::CpuWorkerThreads* workers() const { return &workers_; }

 private:
  std::unique_ptr<FewerThreads> fewer_;
  std::unique_ptr<tensorflow::thread::ThreadPool> named_;  // The pool as TensorFlow's kernels want it.
  std::unique_ptr<Eigen::ThreadPoolDevice> all_;
  const Eigen::ThreadPoolDevice* device_;
  tensorflow::DeviceBase::CpuWorkerThreads workers_;
};

// The thread of a custom call, and those of XLA's pool that are free meanwhile. Another pool would wake a thread for
// each call, while XLA's threads spin: 0.06 to 0.1 ms. For the time of the call.
class CallThreads {
 public:
  explicit CallThreads(xla::ffi::ThreadPool* pool) : CallThreads(pool, std::max<int64_t>(pool->num_threads(), 1)) {}
  CallThreads(xla::ffi::ThreadPool* pool, int64_t count) : pool_(pool), count_(count) {}

  int64_t count() const { return count_; }
  CallThreads One() const { return {pool_, 1}; }

  // Calls `run` for 0 to `parts` - 1. Waits for no part that has not begun: calls may hold all threads of the pool.
  void Divide(int64_t parts, const std::function<void(int64_t)>& run) const;

  // Calls `run` for ranges of 0 to `count`, of which each number takes so many cycles.
  void DivideRange(int64_t count, double cycles, const std::function<void(int64_t, int64_t)>& run) const;

 private:
  xla::ffi::ThreadPool* pool_;
  int64_t count_;
};

}  // namespace tensorflow_ipu
