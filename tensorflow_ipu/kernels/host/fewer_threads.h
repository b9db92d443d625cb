#ifndef TENSORFLOW_IPU_KERNELS_HOST_FEWER_THREADS_H_
#define TENSORFLOW_IPU_KERNELS_HOST_FEWER_THREADS_H_

#include <functional>
#include <utility>

#define EIGEN_USE_THREADS

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

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_FEWER_THREADS_H_
