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
    return in_call || id >= count_ ? -1 : id;  // Callers have no room for more.
  }

  const Eigen::ThreadPoolDevice* device() const { return &device_; }

  // Whether this thread calls a kernel, which does not know it as one of its threads.
  static inline thread_local bool in_call = false;

 private:
  Eigen::ThreadPoolInterface* const pool_;
  const int count_;
  const Eigen::ThreadPoolDevice device_;
};

// Threads that a kernel of the host may use. Thread-safe, and never destroyed.
class HostThreads {
 public:
  // Of a pool of the package. 0 or too many: all threads.
  static const HostThreads& Of(int64_t count);

  // Makes the pool of the first device, which is XLA's, known. It must never be destroyed.
  static void Know(Eigen::ThreadPoolInterface* pool);

  HostThreads(Eigen::ThreadPoolInterface* pool, int count);

  // Calls `run` for 0 to `parts` - 1 on this thread, and on those of XLA's pool that are free meanwhile.
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

// The threads of a call of one of TensorFlow's kernels, which waits for the parts of its work.
//
// XLA's pool serves best: its threads spin after each operation, and a wake takes 0.06 to 0.1 ms. But if all of them
// were in such calls, these would wait for ever. So the last of them has the parts done by the pool of the package, as
// have calls that may use fewer threads, such as those of replicas. A part waits for nobody, so each call ends.
class ThreadsOfCall {
 public:
  explicit ThreadsOfCall(int64_t count);
  ~ThreadsOfCall();

  ThreadsOfCall(const ThreadsOfCall&) = delete;
  ThreadsOfCall& operator=(const ThreadsOfCall&) = delete;

  const HostThreads* get() const { return threads_; }

 private:
  const bool of_xla_;
  const HostThreads* threads_;
};

}  // namespace tensorflow_ipu
