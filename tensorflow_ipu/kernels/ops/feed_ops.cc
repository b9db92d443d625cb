// Ops of the host on feeds.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/feeds/feeds.h"
#include "tensorflow_ipu/kernels/feeds/pump.h"
#include "tensorflow_ipu/kernels/ops/kernel.h"
#include "tensorflow_ipu/kernels/queues/outfeed.h"
#include "tensorflow_ipu/kernels/support/threads.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

// Reads `dataset` into infeed `feed` on a separate thread until the dataset or the feed ends.
REGISTER_OP("IpuInfeedStart")
    .Input("feed: int64")
    .Input("dataset: variant")
    .Attr("types: list(type) >= 1")
    .Attr("shapes: list(shape) >= 1")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

// Ends the active pass of infeed `feed` and its current read. The error is NotFound if there is none.
REGISTER_OP("IpuInfeedStop").Input("feed: int64").SetIsStateful().SetShapeFn(tf::shape_inference::NoOutputs);

absl::StatusOr<std::shared_ptr<Infeed>> FindInfeed(int64_t number) {
  std::shared_ptr<Infeed> infeed = Infeeds().Find(number);
  if (infeed == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("There is no infeed queue with number ", number, ": its Python object was deleted."));
  }
  return infeed;
}

absl::Status StartInfeed(tf::OpKernelContext* context) {
  const ElementSpec spec(context->op_kernel().def());
  TF_ASSIGN_OR_RETURN(const std::shared_ptr<Infeed> infeed, FindInfeed(context->input(0).scalar<int64_t>()()));
  for (std::size_t i = 0; i < spec.shapes.size(); ++i) {
    if (spec.shapes[i].num_elements() > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("Detected an input tensor to an infeed queue with a dimension of size 0: that on index ", i,
                     " of the elements of `", infeed->name(), "`, of shape ", spec.shapes[i].DebugString(),
                     ". A feed cannot carry it: leave it out of the dataset's elements."));
  }
  tf::data::DatasetBase* dataset = nullptr;
  TF_RETURN_IF_ERROR(tf::data::GetDatasetFromVariantTensor(context->input(1), &dataset));
  TF_RETURN_IF_ERROR(core::Deadlines::Global().Prepare());
  TF_ASSIGN_OR_RETURN(std::unique_ptr<DatasetReader> reader, DatasetReader::Make(context, dataset));
  TF_ASSIGN_OR_RETURN(const tf::core::RefCountPtr<PumpRegistry> registry, PumpRegistry::Of(context));
  const std::shared_ptr<InfeedQueue> queue = infeed->Restart(spec.sizes());
  const absl::StatusOr<std::shared_ptr<Pump>> pump = Pump::Start(std::move(reader), queue, spec);
  if (!pump.ok()) {
    infeed->Stop();
    return pump.status();
  }
  registry->Hold(*pump);
  infeed->SetPump(queue, *pump);
  return absl::OkStatus();
}

REGISTER_KERNEL_BUILDER(Name("IpuInfeedStart").Device(tf::DEVICE_CPU), FunctionOp<StartInfeed>);

// How long a stop waits for the current read. A read in the user's code cannot be cancelled, and may wait for an event
// after the stop. Then it is left running.
constexpr std::chrono::seconds kPatience{1};

absl::Status StopInfeed(tf::OpKernelContext* context) {
  TF_ASSIGN_OR_RETURN(const std::shared_ptr<Infeed> infeed, FindInfeed(context->input(0).scalar<int64_t>()()));
  if (infeed->Stop(kPatience)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(
      "The infeed queue `", infeed->name(),
      "` cannot be deleted: it was not initialized, or it was deleted before. Access its `initializer` first."));
}

REGISTER_KERNEL_BUILDER(Name("IpuInfeedStop").Device(tf::DEVICE_CPU), FunctionOp<StopInfeed>);

// Takes all complete rows of outfeed `feed`, at most `most`, and stacks them. A leaf has the shape [rows] + [replicas,
// if several] + its own shape. Waits up to `patience_us` if there is none. With `last`, takes exactly one row, without
// the first dimension. `types` and `shapes` describe the elements with the layout `layout`. On failure, all rows stay
// in the queue.
REGISTER_OP("IpuOutfeedDequeue")
    .Input("feed: int64")
    .Input("patience_us: int64")
    .Input("most: int64")
    .Output("rows: types")
    .Attr("types: list(type) >= 1")
    .Attr("shapes: list(shape) >= 1")
    .Attr("layout: int")
    .Attr("last: bool")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::UnknownShape);

// Deletes outfeed `feed` with its unread elements. The error is NotFound if there is none.
REGISTER_OP("IpuOutfeedDelete").Input("feed: int64").SetIsStateful().SetShapeFn(tf::shape_inference::NoOutputs);

absl::Status NoOutfeed(int64_t number) {
  return absl::NotFoundError(absl::StrCat("There is no outfeed queue with number ", number, ": it was deleted."));
}

class OutfeedDequeueOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    const int64_t number = context->input(0).scalar<int64_t>()();
    const std::chrono::microseconds timeout(context->input(1).scalar<int64_t>()());
    const std::shared_ptr<core::Outfeed> outfeed = Outfeeds().Find(number);
    OP_REQUIRES(context, outfeed != nullptr, NoOutfeed(number));
    core::Outfeed::Taken taken = outfeed->Take(timeout, layout_, context->input(2).scalar<int64_t>()());
    OP_REQUIRES(context, taken.layout == 0 || taken.layout == layout_,
                absl::FailedPreconditionError(
                    absl::StrCat("The outfeed queue `", outfeed->name(),
                                 "` holds elements of another structure, type or shape than this dequeue was "
                                 "created for. Dequeue again, or in a graph, build the dequeue after the program that "
                                 "enqueues them.")));
    OP_REQUIRES(context, !last_ || taken.count == 1,
                absl::FailedPreconditionError(
                    absl::StrCat("The outfeed queue `", outfeed->name(),
                                 "` of mode `IPUOutfeedMode.LAST` has no value to dequeue: no program has "
                                 "enqueued one since the last dequeue. Run the program first.")));
    std::vector<tf::Tensor*> leaves;
    if (absl::Status status = Allocate(context, taken, &leaves); !status.ok()) {
      const std::string message = absl::StrCat("There is no memory to dequeue ", taken.count,
                                               " element(s) of the outfeed queue `", outfeed->name(), "` at once");
      outfeed->PutBack(std::move(taken));
      constexpr char kAdvice[] =
          ". They stay in the queue: `dequeue` fewer at a time, with `max_elements`, or iterate over the queue. ";
      context->SetStatus(absl::Status(status.code(), absl::StrCat(message, kAdvice, status.message())));
      return;
    }
    core::StackLeaves(taken, sizes_, [&](std::size_t leaf) { return leaves[leaf]->data(); });
  }

 private:
  // Allocates the outputs.
  absl::Status Allocate(tf::OpKernelContext* context, const core::Outfeed::Taken& taken,
                        std::vector<tf::Tensor*>* leaves) const {
    for (int i = 0; i < context->num_outputs(); ++i) {
      tf::TensorShape shape;
      if (!last_) shape.AddDim(taken.count);
      if (taken.replicas > 1) shape.AddDim(taken.replicas);
      shape.AppendShape(spec_.shapes[i]);
      leaves->push_back(nullptr);
      TF_RETURN_IF_ERROR(context->allocate_output(i, shape, &leaves->back()));
    }
    return absl::OkStatus();
  }

  const ElementSpec spec_{def()};
  const int64_t layout_ = tf::GetNodeAttr<int64_t>(def(), "layout").value();
  const bool last_ = tf::GetNodeAttr<bool>(def(), "last").value();
  const std::vector<std::size_t> sizes_ = spec_.sizes();
};

REGISTER_KERNEL_BUILDER(Name("IpuOutfeedDequeue").Device(tf::DEVICE_CPU), OutfeedDequeueOp);

absl::Status DeleteOutfeedOf(tf::OpKernelContext* context) {
  const int64_t number = context->input(0).scalar<int64_t>()();
  return DeleteOutfeed(number) ? absl::OkStatus() : NoOutfeed(number);
}

REGISTER_KERNEL_BUILDER(Name("IpuOutfeedDelete").Device(tf::DEVICE_CPU), FunctionOp<DeleteOutfeedOf>);

}  // namespace
}  // namespace tensorflow_ipu
