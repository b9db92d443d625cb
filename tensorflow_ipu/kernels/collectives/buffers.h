// Messages by TensorFlow's collective runtime.
#ifndef TENSORFLOW_IPU_KERNELS_COLLECTIVES_BUFFERS_H_
#define TENSORFLOW_IPU_KERNELS_COLLECTIVES_BUFFERS_H_

#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow_ipu/kernels/core/network.h"

namespace tensorflow_ipu {

// What TensorFlow's own collectives are made of: a worker provides a buffer, and another one consumes it by an RPC. So
// there is no group to be resolved, and a message that fails is no end of all collectives of the process.
//
// Thread-safe. `device` has to outlive it.
class BufferNetwork : public core::Network {
 public:
  // `tasks` are those of all workers, such as /job:worker/replica:0/task:0, whose devices CPU:0 the runtime knows by
  // now.
  BufferNetwork(tensorflow::CollectiveExecutor* executor, tensorflow::Device* device, std::vector<std::string> tasks);

  std::shared_ptr<Calls> NewCalls() override;
  void Send(const std::shared_ptr<Calls>& calls, int64_t to, const std::string& key,
            std::shared_ptr<const core::Message> message, Done done) override;
  void Receive(const std::shared_ptr<Calls>& calls, int64_t from, const std::string& key,
               std::shared_ptr<core::Message> message, Done done) override;
  void Check(int64_t worker, std::chrono::nanoseconds limit, Done done) override;

 private:
  const tensorflow::CollectiveExecutor::Handle executor_;
  tensorflow::Device* const device_;
  const std::vector<std::string> tasks_;
};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_COLLECTIVES_BUFFERS_H_
