// The threads of a device, as a program sees them that is to use but some of them.
#ifndef TENSORFLOW_IPU_KERNELS_HOST_FEWER_THREADS_H_
#define TENSORFLOW_IPU_KERNELS_HOST_FEWER_THREADS_H_

#include <functional>
#include <utility>

#define EIGEN_USE_THREADS

#include "tensorflow/core/platform/threadpool_interface.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace tensorflow_ipu {

// XLA and the libraries that it calls divide a large operation among as many threads as a pool says that it has, and
// hand the parts to the pool. This one says that it has fewer than it has: for one thread they make no parts.
//
// Thread-safe. Must not outlive the pool.
class FewerThreads : public tensorflow::thread::ThreadPoolInterface {
 public:
  FewerThreads(Eigen::ThreadPoolInterface* pool, int count) : pool_(pool), count_(count), device_(this, count) {}

  FewerThreads(const FewerThreads&) = delete;
  FewerThreads& operator=(const FewerThreads&) = delete;

  void Schedule(std::function<void()> part) override { pool_->Schedule(std::move(part)); }
  int NumThreads() const override { return count_; }
  int CurrentThreadId() const override {
    const int id = pool_->CurrentThreadId();
    return id < count_ ? id : -1;  // Whoever asks has no place for more.
  }

  const Eigen::ThreadPoolDevice* device() const { return &device_; }

 private:
  Eigen::ThreadPoolInterface* const pool_;
  const int count_;
  const Eigen::ThreadPoolDevice device_;
};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_FEWER_THREADS_H_
