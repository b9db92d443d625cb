#include "tensorflow_ipu/kernels/collectives/buffers.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/buf_rendezvous.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow_ipu/kernels/host/status.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

constexpr char kDevice[] = "/device:CPU:0";

class TensorFlowCalls : public core::Network::Calls {
 public:
  void Cancel() override { manager_.StartCancel(); }
  tf::CancellationManager* manager() { return &manager_; }

 private:
  tf::CancellationManager manager_;
};

// A message's memory as a tensor's, for as long as either lives.
class OfMessage : public tf::TensorBuffer {
 public:
  explicit OfMessage(std::shared_ptr<const core::Message> message)
      : TensorBuffer(message->data()), message_(std::move(message)) {}

  std::size_t size() const override { return message_->bytes(); }
  tf::TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tf::AllocationDescription*) const override {}
  bool OwnsMemory() const override { return false; }

 private:
  const std::shared_ptr<const core::Message> message_;
};

// What a call needs until it ends.
struct Call {
  Call(std::shared_ptr<core::Network::Calls> calls, std::shared_ptr<const core::Message> message,
       core::Network::Done done)
      : calls(std::move(calls)),
        tensor(tf::DT_INT8, tf::TensorShape({static_cast<int64_t>(message->bytes())}),
               tf::core::RefCountPtr<tf::TensorBuffer>(new OfMessage(message))),
        done(std::move(done)) {}

  tf::CancellationManager* manager() const { return static_cast<TensorFlowCalls&>(*calls).manager(); }

  const std::shared_ptr<core::Network::Calls> calls;
  tf::Tensor tensor;
  const core::Network::Done done;
};

core::Outcome OutcomeOf(const absl::Status& status) {
  // A worker that has another incarnation was started anew, and the one that is meant is gone.
  const bool gone = absl::IsFailedPrecondition(status) || absl::IsNotFound(status);
  const bool other_size = absl::IsInternal(status) && absl::StrContains(status.message(), "bytes where to_tensor");
  if (gone) return core::Outcome::Unavailable(std::string(status.message()));
  if (other_size) return core::Outcome::InvalidArgument(std::string(status.message()) + ".");
  return FromStatus(status);
}

}  // namespace

BufferNetwork::BufferNetwork(tf::CollectiveExecutor* executor, tf::Device* device, std::vector<std::string> tasks)
    : executor_(executor, /*inherit_ref=*/false), device_(device), tasks_(std::move(tasks)) {}

std::shared_ptr<core::Network::Calls> BufferNetwork::NewCalls() { return std::make_shared<TensorFlowCalls>(); }

void BufferNetwork::Send(const std::shared_ptr<Calls>& calls, int64_t to, const std::string& key,
                         std::shared_ptr<const core::Message> message, Done done) {
  const auto call = std::make_shared<Call>(calls, std::move(message), std::move(done));
  executor_.get()->remote_access()->buf_rendezvous()->ProvideBuf(
      absl::StrCat(key, ">", to), device_, /*dev_ctx=*/nullptr, &call->tensor, tf::AllocatorAttributes(),
      [call](const absl::Status& status) { call->done(OutcomeOf(status)); }, call->manager());
}

void BufferNetwork::Receive(const std::shared_ptr<Calls>& calls, int64_t from, const std::string& key,
                            std::shared_ptr<core::Message> message, Done done) {
  const auto call = std::make_shared<Call>(calls, std::move(message), std::move(done));
  executor_.get()->remote_access()->RecvFromPeer(
      absl::StrCat(tasks_[from], kDevice), tasks_[from], /*peer_is_local=*/false,
      absl::StrCat(key, ">", device_->parsed_name().task), device_, /*to_device_ctx=*/nullptr,
      tf::AllocatorAttributes(), &call->tensor, tf::DeviceLocality(), /*dev_to_dev_stream_index=*/0, call->manager(),
      [call](const absl::Status& status) { call->done(OutcomeOf(status)); });
}

void BufferNetwork::Check(int64_t worker, std::chrono::nanoseconds limit, Done done) {
  executor_.get()->remote_access()->CheckPeerHealth(
      tasks_[worker], limit / std::chrono::milliseconds(1),
      [done = std::move(done)](const absl::Status& status) { done(OutcomeOf(status)); });
}

}  // namespace tensorflow_ipu
