// `IpuDatasetBenchmark` measures how fast the host reads a dataset, or an infeed queue passes its elements on.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iomanip>
#include <locale>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
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

// A source of elements. Next is for one thread; Cancel for any.
class Source {
 public:
  virtual ~Source() = default;

  // OutOfRange at the end.
  virtual absl::Status Next(InfeedElement* element) = 0;

  // Ends a waiting Next, and all later ones.
  virtual void Cancel() = 0;
};

class DatasetSource : public Source {
 public:
  explicit DatasetSource(std::unique_ptr<DatasetReader> reader) : reader_(std::move(reader)) {}

  absl::Status Next(InfeedElement* element) override {
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

  void Cancel() override {
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
class QueueSource : public Source {
 public:
  QueueSource(std::unique_ptr<DatasetReader> reader, int64_t depth, ElementSpec spec)
      : infeed_(std::make_shared<Infeed>("benchmark", depth)),
        number_(Infeeds().Add(infeed_)),
        queue_(infeed_->Restart(spec.sizes())) {
    absl::StatusOr<std::shared_ptr<Pump>> pump = Pump::Start(std::move(reader), queue_, std::move(spec));
    if (pump.ok()) {
      infeed_->SetPump(queue_, *std::move(pump));
    } else {
      queue_->End(ToCore(pump.status()));
    }
  }

  ~QueueSource() override {
    Infeeds().Remove(number_);
    infeed_->Stop();
  }

  absl::Status Next(InfeedElement* element) override {
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

  void Cancel() override { queue_->Close(); }

 private:
  const std::shared_ptr<Infeed> infeed_;
  const int64_t number_;
  const std::shared_ptr<InfeedQueue> queue_;
};

struct Epoch {
  int64_t elements = 0;
  int64_t bytes = 0;
  double seconds = 0;

  double elements_per_second() const { return static_cast<double>(elements) / seconds; }
  double gigabytes_per_second() const { return static_cast<double>(bytes) / seconds * 1e-9; }
};

class Meter {
 public:
  Meter(Source* source, bool copy) : source_(source), copy_(copy) {}

  absl::StatusOr<Epoch> Measure(int64_t elements) {
    using Clock = std::chrono::steady_clock;
    Epoch epoch;
    InfeedElement element;
    const Clock::time_point start = Clock::now();
    for (; epoch.elements < elements; ++epoch.elements) {
      const absl::Status status = source_->Next(&element);
      if (!status.ok()) {
        read_ += epoch.elements;
        return status;
      }
      element.ForEachPiece([&](const void* data, std::size_t bytes) {
        epoch.bytes += static_cast<int64_t>(bytes);
        if (copy_) Copy(data, bytes);
      });
    }
    read_ += elements;
    // A clock that has not advanced must not give an infinite speed, which JSON cannot represent.
    epoch.seconds = std::max(1e-9, std::chrono::duration<double>(Clock::now() - start).count());
    return epoch;
  }

  // Elements so far, including those of a failed epoch.
  int64_t read() const { return read_; }

 private:
  void Copy(const void* data, std::size_t bytes) {
    if (buffer_.size() < bytes) buffer_.resize(bytes);
    if (bytes > 0) std::memcpy(buffer_.data(), data, bytes);
  }

  Source* const source_;
  const bool copy_;
  std::vector<char> buffer_;
  int64_t read_ = 0;
};

std::string ToJson(const std::vector<Epoch>& epochs) {
  std::ostringstream json;
  json.imbue(std::locale::classic());
  json << std::setprecision(9) << "{\"epochs\": [";
  const char* comma = "";
  for (const Epoch& epoch : epochs) {
    json << comma << "{\"elements_processed\": " << epoch.elements << ", \"total_bytes_processed\": " << epoch.bytes
         << ", \"time_elapsed\": " << epoch.seconds << ", \"elements_per_second\": " << epoch.elements_per_second()
         << ", \"bandwidth\": " << epoch.gigabytes_per_second() << "}";
    comma = ", ";
  }
  json << "]}";
  return json.str();
}

void Print(int64_t number, const Epoch& epoch) {
  if (number == 1) std::fprintf(stderr, "epoch     elements           bytes     seconds   elements/s       GB/s\n");
  std::fprintf(stderr, "%5lld %12lld %15lld %11.6f %12.1f %10.4f\n", static_cast<long long>(number),
               static_cast<long long>(epoch.elements), static_cast<long long>(epoch.bytes), epoch.seconds,
               epoch.elements_per_second(), epoch.gigabytes_per_second());
}

// On its own thread, as the pump is: a dataset may need the threads on which ops run.
class DatasetBenchmarkOp : public tf::AsyncOpKernel {
 public:
  explicit DatasetBenchmarkOp(tf::OpKernelConstruction* construction) : AsyncOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("types", &spec_.types));
    OP_REQUIRES_OK(construction, construction->GetAttr("shapes", &spec_.shapes));
    OP_REQUIRES_OK(construction, construction->GetAttr("queue_depth", &queue_depth_));
    OP_REQUIRES_OK(construction, construction->GetAttr("copy", &copy_));
    OP_REQUIRES_OK(construction, construction->GetAttr("print_stats", &print_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const core::Status started = core::StartThread("ipu-benchmark", [this, context, done] {
      context->SetStatus(Run(context));
      done();
    });
    OP_REQUIRES_OK_ASYNC(context, ToAbsl(started), done);
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) {
    tf::data::DatasetBase* dataset = nullptr;
    TF_RETURN_IF_ERROR(tf::data::GetDatasetFromVariantTensor(context->input(0), &dataset));
    TF_ASSIGN_OR_RETURN(std::unique_ptr<DatasetReader> reader, DatasetReader::Make(context, dataset));
    std::unique_ptr<Source> source;
    if (queue_depth_ == 0) {
      source = std::make_unique<DatasetSource>(std::move(reader));
    } else {
      source = std::make_unique<QueueSource>(std::move(reader), queue_depth_, spec_);
    }
    tf::CancellationManager* const cancellation = context->cancellation_manager();
    if (cancellation == nullptr) return Report(context, source.get());
    const tf::CancellationToken token = cancellation->get_cancellation_token();
    if (!cancellation->RegisterCallback(token, [&source] { source->Cancel(); })) {
      return absl::CancelledError("The benchmark was cancelled before it began.");
    }
    absl::Status status = Report(context, source.get());
    cancellation->DeregisterCallback(token);
    return status;
  }

  absl::Status Report(tf::OpKernelContext* context, Source* source) const {
    const int64_t epochs = context->input(1).scalar<int64_t>()();
    const int64_t elements = context->input(2).scalar<int64_t>()();
    Meter meter(source, copy_);
    std::vector<Epoch> measured;
    for (int64_t number = 1; number <= epochs; ++number) {
      const absl::StatusOr<Epoch> epoch = meter.Measure(elements);
      if (absl::IsOutOfRange(epoch.status())) {
        return absl::OutOfRangeError(absl::StrCat("The dataset ended after ", meter.read(),
                                                  " elements, and the benchmark needs ", epochs * elements, ": ",
                                                  epochs, " epochs (`number_of_epochs`) of ", elements,
                                                  " elements (`elements_per_epochs`). `repeat()` the "
                                                  "dataset, or ask for fewer."));
      }
      if (!epoch.ok()) return epoch.status();
      if (print_) Print(number, *epoch);
      measured.push_back(*epoch);
    }
    tf::Tensor* report = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, tf::TensorShape({1}), &report));
    report->vec<tf::tstring>()(0) = ToJson(measured);
    return absl::OkStatus();
  }

  ElementSpec spec_;
  int64_t queue_depth_;
  bool copy_;
  bool print_;
};

REGISTER_KERNEL_BUILDER(Name("IpuDatasetBenchmark").Device(tf::DEVICE_CPU), DatasetBenchmarkOp);

}  // namespace
}  // namespace tensorflow_ipu
