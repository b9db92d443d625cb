// The threads among which kernels of the host divide their work.
#ifndef TENSORFLOW_IPU_KERNELS_HOST_THREADS_H_
#define TENSORFLOW_IPU_KERNELS_HOST_THREADS_H_

#include <memory>

#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow_ipu/kernels/host/fewer_threads.h"

namespace tensorflow_ipu {

// What a kernel gets that may use so many threads.
//
// A kernel runs on a thread of XLA's, hands parts of its work to a pool, and waits for them on that thread. On XLA's
// own pool they could wait for ever: a few kernels in flight would hold all of its threads, and their parts would find
// none. So the parts have a pool of their own, on whose threads nothing else runs. A part computes and waits for
// nobody, as it does on the pool that TensorFlow itself gives its kernels. So every part comes to its end, with it
// every kernel, and no run can wait for itself, however many are in flight.
//
// Thread-safe, and never destroyed.
class HostThreads {
 public:
  // For a kernel that may use `count` threads; all that there are where it is 0 or more than that.
  static const HostThreads& Of(int64_t count);

  explicit HostThreads(tensorflow::thread::ThreadPool* pool);
  HostThreads(tensorflow::thread::ThreadPool* pool, int count);

  HostThreads(const HostThreads&) = delete;
  HostThreads& operator=(const HostThreads&) = delete;

  const Eigen::ThreadPoolDevice* device() const { return device_; }
  const tensorflow::DeviceBase::CpuWorkerThreads* workers() const { return &workers_; }

 private:
  std::unique_ptr<FewerThreads> fewer_;
  std::unique_ptr<tensorflow::thread::ThreadPool> named_;  // The pool as TensorFlow's kernels want it.
  std::unique_ptr<Eigen::ThreadPoolDevice> all_;
  const Eigen::ThreadPoolDevice* device_;
  tensorflow::DeviceBase::CpuWorkerThreads workers_;
};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_THREADS_H_
