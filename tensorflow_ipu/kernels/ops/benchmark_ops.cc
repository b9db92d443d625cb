// `IpuDatasetBenchmark` measures how fast the host reads a dataset, or an infeed queue passes its elements on.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/core/threads.h"
#include "tensorflow_ipu/kernels/core/waiting.h"
#include "tensorflow_ipu/kernels/feeds/feeds.h"
#include "tensorflow_ipu/kernels/feeds/pump.h"
#include "tensorflow_ipu/kernels/host/status.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

// Reads `epochs` times `elements` elements of `dataset` in one pass: directly with `queue_depth` 0, else through an
// infeed queue of that depth for elements of `types` and `shapes`. With `copy`, copies each element as a program would.
// `report` is a vector of one string, JSON; `print_stats` also prints it as a table to stderr.
REGISTER_OP("IpuDatasetBenchmark")
    .Input("dataset: variant")
    .Input("epochs: int64")
    .Input("elements: int64")
    .Output("report: string")
    .Attr("types: list(type)")
    .Attr("shapes: list(shape)")
    .Attr("queue_depth: int >= 0")
    .Attr("copy: bool")
    .Attr("print_stats: bool")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Vector(1));
      return absl::OkStatus();
    });

// The sources of elements. Next is for one thread, and returns OutOfRange at the end. Cancel is for any thread; it ends
// a waiting Next, and all later ones.

class DatasetSource {
 public:
  explicit DatasetSource(std::unique_ptr<DatasetReader> reader) : reader_(std::move(reader)) {}

  absl::Status Next(InfeedElement* element) {
    bool end = false;
    tensors_.clear();
    const absl::Status status = reader_->GetNext(&tensors_, &end);
    // A cancelled dataset may seem to end. Nobody else checks for Ctrl-C here.
    if (cancelled_ || core::interrupted.load(std::memory_order_relaxed)) {
      return absl::CancelledError("The benchmark was interrupted.");
    }
    if (!status.ok()) return status;
    if (end) return absl::OutOfRangeError("end");
    element->Hold(&tensors_);
    return absl::OkStatus();
  }

  void Cancel() {
    cancelled_ = true;
    reader_->Cancel();
  }

 private:
  std::atomic<bool> cancelled_{false};
  const std::unique_ptr<DatasetReader> reader_;
  std::vector<tf::Tensor> tensors_;
};

// Takes elements as the program of one replica does. The queue is registered, so that Ctrl-C and the end of the process
// reach it.
class QueueSource {
 public:
  QueueSource(std::unique_ptr<DatasetReader> reader, int64_t depth, const ElementSpec& spec)
      : infeed_(std::make_shared<Infeed>("benchmark", depth)),
        number_(Infeeds().Add(infeed_)),
        queue_(infeed_->Restart(spec.sizes())) {
    absl::StatusOr<std::shared_ptr<Pump>> pump = Pump::Start(std::move(reader), queue_, spec);
    if (pump.ok()) {
      infeed_->SetPump(queue_, *std::move(pump));
    } else {
      queue_->End(ToCore(pump.status()));
    }
  }

  ~QueueSource() {
    Infeeds().Remove(number_);
    infeed_->Stop();
  }

  absl::Status Next(InfeedElement* element) {
    core::Status why;
    element->Drop();
    if (queue_->TakeOrSpin(0, 1, element, &why) != InfeedQueue::Took::kNothing) return ToAbsl(why);
    absl::Notification came;
    queue_->TakeLater(0, 1, [&](core::Status status, InfeedElement late) {
      why = std::move(status);
      *element = std::move(late);
      came.Notify();
    });
    came.WaitForNotification();
    return ToAbsl(why);
  }

  void Cancel() { queue_->Close(); }

 private:
  const std::shared_ptr<Infeed> infeed_;
  const int64_t number_;
  const std::shared_ptr<InfeedQueue> queue_;
};

// On its own thread, as the pump is: a dataset may need the threads on which ops run.
class DatasetBenchmarkOp : public tf::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const core::Status started = core::StartThread("ipu-benchmark", [this, context, done] {
      context->SetStatus(Run(context));
      done();
    });
    OP_REQUIRES_OK_ASYNC(context, ToAbsl(started), done);
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) const {
    tf::data::DatasetBase* dataset = nullptr;
    TF_RETURN_IF_ERROR(tf::data::GetDatasetFromVariantTensor(context->input(0), &dataset));
    TF_ASSIGN_OR_RETURN(std::unique_ptr<DatasetReader> reader, DatasetReader::Make(context, dataset));
    if (queue_depth_ > 0) return Run(context, QueueSource(std::move(reader), queue_depth_, spec_));
    return Run(context, DatasetSource(std::move(reader)));
  }

  template <typename Source>
  absl::Status Run(tf::OpKernelContext* context, Source&& source) const {
    tf::CancellationManager* const cancellation = context->cancellation_manager();
    if (cancellation == nullptr) return Measure(context, source);
    const tf::CancellationToken token = cancellation->get_cancellation_token();
    if (!cancellation->RegisterCallback(token, [&source] { source.Cancel(); })) {
      return absl::CancelledError("The benchmark was cancelled before it began.");
    }
    absl::Status status = Measure(context, source);
    cancellation->DeregisterCallback(token);
    return status;
  }

  template <typename Source>
  absl::Status Measure(tf::OpKernelContext* context, Source& source) const {
    const auto epochs = context->input(1).scalar<int64_t>()(), elements = context->input(2).scalar<int64_t>()();
    std::vector<std::string> measured;
    std::vector<char> copied;
    InfeedElement element;
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      const auto start = std::chrono::steady_clock::now();
      int64_t bytes = 0;
      for (int64_t read = 0; read < elements; ++read) {
        const absl::Status status = source.Next(&element);
        if (absl::IsOutOfRange(status)) {
          return absl::OutOfRangeError(
              absl::StrCat("The dataset ended after ", epoch * elements + read, " elements, and the benchmark needs ",
                           epochs * elements, ": ", epochs, " epochs (`number_of_epochs`) of ", elements,
                           " elements (`elements_per_epochs`). `repeat()` the dataset, or ask for fewer."));
        }
        if (!status.ok()) return status;
        element.ForEachPiece([&](const void* data, std::size_t size) {
          bytes += static_cast<int64_t>(size);
          if (!copy_) return;
          if (copied.size() < size) copied.resize(size);
          if (size > 0) std::memcpy(copied.data(), data, size);
        });
      }
      // A clock that has not advanced must not give an infinite speed, which JSON cannot represent.
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      const double seconds = std::max(1e-9, took.count());
      const double speed = static_cast<double>(elements) / seconds;
      const double bandwidth = static_cast<double>(bytes) / seconds * 1e-9;
      measured.push_back(
          absl::StrFormat("{\"elements_processed\": %d, \"total_bytes_processed\": %d, \"time_elapsed\": %.9g, "
                          "\"elements_per_second\": %.9g, \"bandwidth\": %.9g}",
                          elements, bytes, seconds, speed, bandwidth));
      if (!print_) continue;
      if (epoch == 0) absl::FPrintF(stderr, "epoch     elements           bytes     seconds   elements/s       GB/s\n");
      absl::FPrintF(stderr, "%5d %12d %15d %11.6f %12.1f %10.4f\n", epoch + 1, elements, bytes, seconds, speed,
                    bandwidth);
    }
    tf::Tensor report(tf::DT_STRING, {1});
    report.vec<tf::tstring>()(0) = absl::StrCat("{\"epochs\": [", absl::StrJoin(measured, ", "), "]}");
    context->set_output(0, report);
    return absl::OkStatus();
  }

  const ElementSpec spec_{def()};
  const int64_t queue_depth_ = tf::GetNodeAttr<int64_t>(def(), "queue_depth").value();
  const bool copy_ = tf::GetNodeAttr<bool>(def(), "copy").value();
  const bool print_ = tf::GetNodeAttr<bool>(def(), "print_stats").value();
};

REGISTER_KERNEL_BUILDER(Name("IpuDatasetBenchmark").Device(tf::DEVICE_CPU), DatasetBenchmarkOp);

}  // namespace
}  // namespace tensorflow_ipu
