// `IpuHostExchange`: collectives of workers on host tensors, outside of programs.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/collectives/exchange.h"
#include "tensorflow_ipu/kernels/numerics/reduction.h"
#include "tensorflow_ipu/kernels/replicas/workers.h"
#include "tensorflow_ipu/kernels/support/threads.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

// `kind` is "sum", "mean", "gather" (a concatenation along the first axis) or "broadcast" (of the tensor of worker
// `root`). All workers in `members`, in order, take part with tensors of the same shape. `sequence` is the argument of
// `NewHostExchange`. `words` describe the op in messages, with {} for the shape. `limit` is in seconds.
REGISTER_OP("IpuHostExchange")
    .Input("own: T")
    .Output("exchanged: T")
    .Attr("T: type")
    .Attr("kind: {'sum', 'mean', 'gather', 'broadcast'}")
    .Attr("members: list(int) >= 1")
    .Attr("root: int = 0")
    .Attr("sequence: string")
    .Attr("words: string")
    .Attr("limit: float")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      std::string kind;
      std::vector<int64_t> members;
      TF_RETURN_IF_ERROR(c->GetAttr("kind", &kind));
      TF_RETURN_IF_ERROR(c->GetAttr("members", &members));
      tf::shape_inference::ShapeHandle shape = c->input(0);
      if (kind == "gather") {
        TF_RETURN_IF_ERROR(c->WithRankAtLeast(shape, 1, &shape));
        tf::shape_inference::DimensionHandle rows;
        TF_RETURN_IF_ERROR(c->Multiply(c->Dim(shape, 0), static_cast<int64_t>(members.size()), &rows));
        TF_RETURN_IF_ERROR(c->ReplaceDim(shape, 0, rows, &shape));
      }
      c->set_output(0, shape);
      return absl::OkStatus();
    });

class HostExchangeOp : public tf::AsyncOpKernel {
 public:
  explicit HostExchangeOp(tf::OpKernelConstruction* construction) : AsyncOpKernel(construction) {
    std::string kind;
    float limit = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("kind", &kind));
    OP_REQUIRES_OK(construction, construction->GetAttr("members", &members_));
    OP_REQUIRES_OK(construction, construction->GetAttr("root", &collective_.root));
    OP_REQUIRES_OK(construction, construction->GetAttr("sequence", &sequence_));
    OP_REQUIRES_OK(construction, construction->GetAttr("words", &words_));
    OP_REQUIRES_OK(construction, construction->GetAttr("limit", &limit));
    limit_ = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(limit));
    const tf::DataType type = construction->input_type(0);
    if (kind == "gather" || kind == "broadcast") {
      collective_.kind = kind == "gather" ? core::Kind::kAllGather : core::Kind::kBroadcast;
      OP_REQUIRES(construction, tf::DataTypeCanUseMemcpy(type),
                  absl::InvalidArgumentError(
                      absl::StrCat("Workers cannot exchange tensors of the type ", tf::DataTypeString(type), ".")));
      return;
    }
    collective_.reduction = kind == "sum" ? core::Reduction::kSum : core::Reduction::kMean;
    xla::PrimitiveType primitive = xla::PRIMITIVE_TYPE_INVALID;
    const bool is_supported = tf::DataTypeToPrimitiveType(type, &primitive).ok() && primitive <= xla::BF16;
    if (is_supported) type_ = static_cast<core::DataType>(primitive);
    OP_REQUIRES(construction, is_supported && core::SizeOf(type_) > 0 && core::Supports(type_, collective_.reduction),
                absl::InvalidArgumentError(
                    absl::StrCat("Workers cannot add tensors of the type ", tf::DataTypeString(type), ".")));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const std::shared_ptr<const core::Workers> joined = CurrentWorkers();
    OP_REQUIRES_ASYNC(context, joined != nullptr,
                      absl::FailedPreconditionError("This process has not joined a cluster."), done);
    OP_REQUIRES_OK_ASYNC(context, core::Deadlines::Global().Prepare(), done);
    const tf::Tensor& own = context->input(0);
    tf::TensorShape shape = own.shape();
    const auto count = static_cast<int64_t>(members_.size());
    if (collective_.kind == core::Kind::kAllGather) {
      OP_REQUIRES_ASYNC(context, shape.dims() > 0,
                        absl::InvalidArgumentError("A gathered tensor must have at least one axis."), done);
      shape.set_dim(0, shape.dim_size(0) * count);
    }
    tf::Tensor* exchanged = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, shape, &exchanged), done);

    core::Workers workers = *joined;
    workers.limit = limit_;
    const std::vector<std::string> around = absl::StrSplit(words_, absl::MaxSplits("{}", 1));
    const std::shared_ptr<core::DistributedRun> run = NewHostExchange(
        workers, sequence_,
        absl::StrCat(around.front(), "[", absl::StrJoin(own.shape().dim_sizes(), ", "), "]", around.back()));
    tf::CancellationManager* const manager = context->cancellation_manager();
    const tf::CancellationToken token = manager == nullptr ? 0 : manager->get_cancellation_token();
    const auto abort = [weak = std::weak_ptr<core::DistributedRun>(run)] {
      if (const auto self = weak.lock()) self->Abort(absl::CancelledError("The step was cancelled."));
    };
    if (manager != nullptr && !manager->RegisterCallback(token, abort)) abort();
    run->Cross(run->ExchangeName(), "0", PartOf(own, *exchanged, workers.worker()),
               [run, context, manager, token, own, exchanged = *exchanged,
                done = std::move(done)](const absl::Status& status) {
                 run->End(status);
                 if (manager != nullptr) manager->DeregisterCallback(token);
                 if (!status.ok()) context->SetStatus(status);
                 done();
               });
  }

 private:
  core::Exchange PartOf(const tf::Tensor& own, const tf::Tensor& exchanged, int64_t worker) const {
    core::Operand operand{core::DataType::kU8, reinterpret_cast<const std::byte*>(own.data()),
                          reinterpret_cast<std::byte*>(exchanged.data()), static_cast<int64_t>(own.TotalBytes()),
                          static_cast<int64_t>(exchanged.TotalBytes())};
    if (collective_.kind == core::Kind::kAllReduce) {
      operand.type = type_;
      operand.count = operand.output_count = own.NumElements();
    }
    std::vector<core::Share> shares;
    for (const int64_t member : members_) shares.push_back({member, static_cast<int64_t>(shares.size()), 1});
    const auto place = std::find(members_.begin(), members_.end(), worker) - members_.begin();
    return core::Exchange(collective_, {{operand}}, std::move(shares), static_cast<std::size_t>(place));
  }

  core::Collective collective_;
  core::DataType type_ = core::DataType::kU8;
  std::vector<int64_t> members_;
  std::string sequence_;
  std::string words_;
  std::chrono::nanoseconds limit_{0};
};

REGISTER_KERNEL_BUILDER(Name("IpuHostExchange").Device(tf::DEVICE_CPU), HostExchangeOp);

}  // namespace
}  // namespace tensorflow_ipu
