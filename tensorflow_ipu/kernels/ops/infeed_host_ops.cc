// Ops of the host on infeeds: start a pass over a dataset, and stop it.
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/core/deadlines.h"
#include "tensorflow_ipu/kernels/feeds/infeeds.h"
#include "tensorflow_ipu/kernels/feeds/pump.h"
#include "tensorflow_ipu/kernels/host/status.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// Reads `dataset` into infeed `feed` on its own thread until the dataset or the feed ends.
REGISTER_OP("IpuInfeedStart")
    .Input("feed: int64")
    .Input("dataset: variant")
    .Attr("types: list(type) >= 1")
    .Attr("shapes: list(shape) >= 1")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext*) { return absl::OkStatus(); });

// Ends the pass of infeed `feed` and its current read; NotFound if there is none.
REGISTER_OP("IpuInfeedStop")
    .Input("feed: int64")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext*) { return absl::OkStatus(); });

namespace {

absl::StatusOr<std::shared_ptr<Infeed>> FindInfeed(int64_t number) {
  std::shared_ptr<Infeed> infeed = Infeeds().Find(number);
  if (infeed == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("There is no infeed queue of number ", number, " (any more): its Python object is gone."));
  }
  return infeed;
}

class InfeedStartOp : public tf::OpKernel {
 public:
  explicit InfeedStartOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("types", &spec_.types));
    OP_REQUIRES_OK(construction, construction->GetAttr("shapes", &spec_.shapes));
  }

  void Compute(tf::OpKernelContext* context) override {
    const absl::StatusOr<std::shared_ptr<Infeed>> infeed = FindInfeed(context->input(0).scalar<int64_t>()());
    OP_REQUIRES_OK(context, infeed.status());
    for (std::size_t i = 0; i < spec_.shapes.size(); ++i) {
      OP_REQUIRES(
          context, spec_.shapes[i].num_elements() > 0,
          absl::InvalidArgumentError(absl::StrCat(
              "The tensor on index ", i, " of the elements of the infeed queue `", (*infeed)->name(), "` has shape ",
              spec_.shapes[i].DebugString(), ", with a dimension of size 0. A feed cannot carry it: leave it out of ",
              "the dataset's elements.")));
    }
    tf::data::DatasetBase* dataset = nullptr;
    OP_REQUIRES_OK(context, tf::data::GetDatasetFromVariantTensor(context->input(1), &dataset));
    OP_REQUIRES_OK(context, ToStatus(core::Deadlines::Global().Prepare()));
    absl::StatusOr<std::unique_ptr<DatasetReader>> reader = DatasetReader::Make(context, dataset);
    OP_REQUIRES_OK(context, reader.status());
    const absl::StatusOr<tf::core::RefCountPtr<PumpAnchor>> anchor = PumpAnchor::Of(context);
    OP_REQUIRES_OK(context, anchor.status());
    const std::shared_ptr<InfeedQueue> queue = (*infeed)->Restart(spec_.sizes());
    const absl::StatusOr<std::shared_ptr<Pump>> pump = Pump::Start(*std::move(reader), queue, spec_);
    if (!pump.ok()) (*infeed)->Stop();
    OP_REQUIRES_OK(context, pump.status());
    (*anchor)->Hold(*pump);
    (*infeed)->Adopt(queue, *pump);
  }

 private:
  ElementSpec spec_;
};

REGISTER_KERNEL_BUILDER(Name("IpuInfeedStart").Device(tf::DEVICE_CPU), InfeedStartOp);

// How long a stop waits for the current read. A read in the user's code cannot be cancelled, and may wait for what
// comes after the stop; then it is left running.
constexpr std::chrono::seconds kPatience{1};

class InfeedStopOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    const absl::StatusOr<std::shared_ptr<Infeed>> infeed = FindInfeed(context->input(0).scalar<int64_t>()());
    OP_REQUIRES_OK(context, infeed.status());
    OP_REQUIRES(context, (*infeed)->Stop(kPatience),
                absl::NotFoundError(
                    absl::StrCat("The infeed queue `", (*infeed)->name(),
                                 "` cannot be deleted: it was not initialized, or it was deleted before. Access "
                                 "its `initializer` first.")));
  }
};

REGISTER_KERNEL_BUILDER(Name("IpuInfeedStop").Device(tf::DEVICE_CPU), InfeedStopOp);

}  // namespace
}  // namespace tensorflow_ipu
