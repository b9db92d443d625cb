// `IpuBeginExchange` and `IpuEndExchange`: the limit of what one of TensorFlow's collectives exchanges between them.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/core/deadlines.h"
#include "tensorflow_ipu/kernels/core/executor.h"
#include "tensorflow_ipu/kernels/host/status.h"
#include "xla/tsl/distributed_runtime/coordination/coordination_service_agent.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// TensorFlow's own limit, its collectives' attribute `timeout_seconds`, ends the operation at once, while threads of
// its runtime still read what goes with it (`BaseCollectiveExecutor::ExecuteAsync`), and the process with it now and
// then. This one ends the runtime's waits, and the operation ends by itself.
//
// `given` is what the collective takes, and `done` what it returns. `exchange` is held by whoever is to run the end:
// when a step fails in between, it goes with the step, and the limit with it. `limit` is in seconds, `worker` is this
// one of `workers`, which have their names for messages; there are none where not all take part.
REGISTER_OP("IpuBeginExchange")
    .Input("given: T")
    .Output("same: T")
    .Output("exchange: resource")
    .Attr("T: type")
    .Attr("what: string")
    .Attr("limit: float")
    .Attr("worker: int >= 0")
    .Attr("workers: list(string) >= 0")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->input(0));
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    });

REGISTER_OP("IpuEndExchange")
    .Input("done: T")
    .Input("exchange: resource")
    .Output("same: T")
    .Attr("T: type")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::UnchangedShape);

namespace {

// How long another worker, which began to wait at another time, has to say for what.
constexpr absl::Duration kRest = absl::Seconds(2);

// TensorFlow's, which lives as long as the cluster that this process has joined. An operation that is called by itself
// is not told of it, so it is the one that a graph's was told of last.
tsl::CoordinationServiceAgent* AgentOf(tf::OpKernelContext* context) {
  static std::atomic<tsl::CoordinationServiceAgent*> last{nullptr};
  if (auto* const agent = context->coordination_service_agent(); agent != nullptr) last = agent;
  return last;
}

struct Limited {
  std::string what;
  float limit = 0;
  int worker = 0;
  std::vector<std::string> workers;
};

// An exchange that is under way.
class ExchangeLimit : public tf::ResourceBase {
 public:
  ExchangeLimit(Limited limited, tf::CollectiveExecutor* executor, tsl::CoordinationServiceAgent* agent)
      : limited_(std::move(limited)), executor_(tsl::core::GetNewRef(executor)), agent_(agent) {
    const std::chrono::duration<double> limit(limited_.limit);
    ticket_ = core::Deadlines::Global().Add(
        core::Deadlines::Clock::now() + std::chrono::duration_cast<core::Deadlines::Clock::duration>(limit),
        [weak = tf::core::WeakPtr<ExchangeLimit>(this)] {
          core::Executor::Global().Run([weak](const core::Outcome& started) {
            if (const auto self = weak.GetNewRef()) self->GiveUp(started.ok());
          });
        });
  }
  ~ExchangeLimit() override { core::Deadlines::Global().Remove(ticket_); }

  std::string DebugString() const override { return absl::StrCat("The limit of ", limited_.what); }

 private:
  void GiveUp(bool may_ask) {
    const std::string others = may_ask ? Others() : "";
    if (RefCountIsOne()) return;  // It has ended meanwhile.
    executor_->StartAbort(absl::DeadlineExceededError(
        absl::StrCat(limited_.what, ": Collective has timed out (after ", limited_.limit,
                     " s: ", others.empty() ? "a worker did not come, or exchanges something else" : others, ")")));
  }

  // Which other workers are not in this exchange, in words; empty where all of them are, or nobody knows. Workers that
  // have waited in vain tell each other for what, once: TensorFlow exchanges nothing more then. It hands what one of
  // them says on to the others, so the words hold there too: they name this worker as well.
  std::string Others() const {
    if (agent_ == nullptr || limited_.workers.empty()) return "";
    constexpr char kPlace[] = "tensorflow_ipu/late/";
    if (!agent_->InsertKeyValue(absl::StrCat(kPlace, limited_.worker), limited_.what).ok()) return "";
    std::string words;
    bool differ = false;
    for (std::size_t worker = 0; worker < limited_.workers.size(); ++worker) {
      if (worker == static_cast<std::size_t>(limited_.worker)) continue;
      const absl::StatusOr<std::string> theirs = agent_->GetKeyValue(absl::StrCat(kPlace, worker), kRest);
      if (theirs.ok() && *theirs == limited_.what) continue;
      absl::StrAppend(&words, words.empty() ? "" : "; ", limited_.workers[worker],
                      theirs.ok() ? absl::StrCat(" exchanges ", *theirs) : " did not come");
      differ |= theirs.ok();
    }
    if (differ) absl::StrAppend(&words, "; ", limited_.workers[limited_.worker], " exchanges ", limited_.what);
    return words;
  }

  const Limited limited_;
  const tf::core::RefCountPtr<tf::CollectiveExecutor> executor_;
  tsl::CoordinationServiceAgent* const agent_;
  core::Deadlines::Ticket ticket_;
};

class BeginExchangeOp : public tf::OpKernel {
 public:
  explicit BeginExchangeOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("what", &limited_.what));
    OP_REQUIRES_OK(construction, construction->GetAttr("limit", &limited_.limit));
    OP_REQUIRES_OK(construction, construction->GetAttr("worker", &limited_.worker));
    OP_REQUIRES_OK(construction, construction->GetAttr("workers", &limited_.workers));
  }

  void Compute(tf::OpKernelContext* context) override {
    tf::CollectiveExecutor* const executor = context->collective_executor();
    OP_REQUIRES(context, executor != nullptr,
                absl::FailedPreconditionError("This process has not joined a cluster of TensorFlow's."));
    OP_REQUIRES_OK(context, ToStatus(core::Deadlines::Global().Prepare()));
    tf::Tensor* exchange = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(1, tf::TensorShape({}), &exchange));
    exchange->scalar<tf::ResourceHandle>()() = tf::ResourceHandle::MakeRefCountingHandle(
        new ExchangeLimit(limited_, executor, AgentOf(context)), context->device()->name());
    context->set_output(0, context->input(0));
  }

 private:
  Limited limited_;
};

class EndExchangeOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override { context->set_output(0, context->input(0)); }
};

REGISTER_KERNEL_BUILDER(Name("IpuBeginExchange").Device(tf::DEVICE_CPU), BeginExchangeOp);
REGISTER_KERNEL_BUILDER(Name("IpuEndExchange").Device(tf::DEVICE_CPU), EndExchangeOp);

}  // namespace
}  // namespace tensorflow_ipu
