#include "tensorflow_ipu/kernels/feeds/pump.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "tensorflow/core/common_runtime/rendezvous_mgr.h"
#include "tensorflow/core/data/root_dataset.h"
#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow_ipu/kernels/host/host_device.h"
#include "tensorflow_ipu/kernels/support/metrics.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"
#include "tensorflow_ipu/kernels/support/threads.h"
#include "tensorflow_ipu/kernels/support/tuning.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

// Counts the pumps that run. Thread-safe; never destroyed.
class Running {
 public:
  static Running& Global() { return core::NeverDestroyed<Running>(); }

  void Add(int change) {
    const absl::MutexLock lock(&mutex_);
    count_ += change;
  }

  bool AwaitNone(std::chrono::nanoseconds limit) {
    const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return count_ == 0; };
    const absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&none), absl::FromChrono(limit));
  }

 private:
  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// How long the end of a session waits for its pumps. User code in datasets seldom expects to run after the session.
constexpr std::chrono::seconds kShutdownTimeout{1};

// Returns an error if the system cannot start the threads of a dataset; TensorFlow would abort the process. An
// iteration needs a pool, an autotuner unless it is disabled, a buffer and the pump. One more is spare.
absl::Status CheckThreads(const tf::data::DatasetBase& dataset) {
  constexpr int kOthers = 3;
  const tf::data::AutotuneOptions& tuning = dataset.options().autotune_options();
  const bool tuned = tuning.optional_enabled_case() != tf::data::AutotuneOptions::kEnabled || tuning.enabled();
  const int pool = dataset.options().threading_options().private_threadpool_size();
  const int threads = kOthers + (tuned ? 1 : 0) + (pool > 0 ? pool : tf::port::MaxParallelism());
  return core::TryThreads("ipu-try", threads);
}

}  // namespace

ElementSpec::ElementSpec(const tf::NodeDef& node)
    : types(tf::GetNodeAttr<tf::DataTypeVector>(node, "types").value()),
      shapes(tf::GetNodeAttr<std::vector<tf::TensorShape>>(node, "shapes").value()) {}

std::vector<std::size_t> ElementSpec::sizes() const {
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < types.size(); ++i) {
    sizes.push_back(static_cast<std::size_t>(shapes[i].num_elements() * tf::DataTypeSize(types[i])));
  }
  return sizes;
}

absl::Status DatasetReader::MakeLibrary(tf::OpKernelContext* context) {
  TF_ASSIGN_OR_RETURN(devices_, SessionDevices::Of(context));
  tf::FunctionLibraryRuntime* const original = context->function_library();
  definitions_.reset(new tf::FunctionLibraryDefinition(*original->GetFunctionLibraryDefinition()));
  const tf::ConfigProto* const config = original->config_proto();
  tf::Rendezvous::Factory pending_collectives(
      [](int64_t, const tf::DeviceMgr* devices, tf::core::RefCountPtr<tf::Rendezvous>* rendezvous) {
        rendezvous->reset(new tf::RefCountedIntraProcessRendezvous(devices));
        return absl::OkStatus();
      });
  process_library_ = std::make_unique<tf::ProcessFunctionLibraryRuntime>(
      devices_.get(), context->env(), config, original->graph_def_version(), definitions_.get(),
      config == nullptr ? tf::OptimizerOptions() : config->graph_options().optimizer_options(), /*thread_pool=*/nullptr,
      /*parent=*/nullptr, /*session_metadata=*/nullptr, std::move(pending_collectives));
  functions_ = std::make_unique<tf::FunctionHandleCache>(process_library_->GetFLR(context->device()->name()));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DatasetReader>> DatasetReader::Make(tf::OpKernelContext* context,
                                                                   tf::data::DatasetBase* dataset) {
  TF_RETURN_IF_ERROR(CheckThreads(*dataset));
  std::unique_ptr<DatasetReader> reader(new DatasetReader());
  TF_RETURN_IF_ERROR(reader->MakeLibrary(context));
  dataset->Ref();
  reader->dataset_.reset(dataset);
  tf::data::DatasetBase* finalized = nullptr;
  TF_RETURN_IF_ERROR(tf::data::FinalizeDataset(context, dataset, &finalized));
  reader->finalized_.reset(finalized);
  // The reader outlives the op and its session, so it must not keep anything of the op's context.
  tf::FunctionLibraryRuntime* const library = reader->process_library_->GetFLR(context->device()->name());
  tf::Device* const device = library->device();
  tf::data::IteratorContext::Params params(context);
  params.flr = library;
  params.function_handle_cache = reader->functions_.get();
  params.resource_mgr = &reader->resources_;
  params.cancellation_manager = &reader->cancellation_;
  params.collective_executor = nullptr;
  params.accelerator_device_info = nullptr;
  params.allocator_getter = [device](tf::AllocatorAttributes attributes) { return device->GetAllocator(attributes); };
  params.runner = [workers = device->tensorflow_cpu_worker_threads()->workers](std::function<void()> call) {
    workers->Schedule(std::move(call));
  };
  params.thread_factory = reader->threads_.get_thread_factory();
  params.thread_pool = &reader->threads_;
  params.warm_start = finalized->options().warm_start();
  reader->context_ = std::make_unique<tf::data::IteratorContext>(std::move(params));
  TF_RETURN_IF_ERROR(reader->MakeIterator());
  return reader;
}

absl::Status DatasetReader::Begin() {
  iterator_.reset();
  TF_RETURN_IF_ERROR(CheckThreads(*finalized_));
  return MakeIterator();
}

absl::Status DatasetReader::MakeIterator() {
  return finalized_->MakeIterator(context_.get(), /*parent=*/nullptr, "Iterator", &iterator_);
}

DatasetReader::DatasetReader() : threads_(tf::Env::Default(), "ipu_dataset") {}

// The dataset's threads must end before the objects that they use are destroyed.
DatasetReader::~DatasetReader() { Cancel(); }

Pump::Pump(std::unique_ptr<DatasetReader> reader, std::shared_ptr<InfeedQueue> queue, ElementSpec spec)
    : reader_(std::move(reader)), queue_(std::move(queue)), spec_(std::move(spec)) {}

absl::StatusOr<std::shared_ptr<Pump>> Pump::Start(std::unique_ptr<DatasetReader> reader,
                                                  std::shared_ptr<InfeedQueue> queue, ElementSpec spec) {
  auto pump = std::make_shared<Pump>(std::move(reader), std::move(queue), std::move(spec));
  Running::Global().Add(1);
  const absl::Status started = core::StartThread("ipu-pump", [pump]() mutable {
    pump->Run();
    pump->Release();
    pump->done_.Notify();
    pump.reset();
    Running::Global().Add(-1);
  });
  if (!started.ok()) {
    Running::Global().Add(-1);
    return started;
  }
  return pump;
}

void Pump::Stop() {
  queue_->Close();
  const absl::MutexLock lock(&mutex_);
  if (reader_ != nullptr) reader_->Cancel();
}

void Pump::Release() {
  std::unique_ptr<DatasetReader> released;  // Destroyed after the lock is released.
  const absl::MutexLock lock(&mutex_);
  released.swap(reader_);
}

bool Pump::AwaitAll(std::chrono::nanoseconds limit) { return Running::Global().AwaitNone(limit); }

void Pump::Run() {
  std::vector<tf::Tensor> tensors;
  InfeedElement element;
  for (int64_t count = 0;; ++count) {
    bool end = false;
    const absl::Status status = count == 0 ? GetFirst(&tensors, &end) : reader_->GetNext(&tensors, &end);
    if (!status.ok()) {
      Note(absl::StrCat("ends after ", count, " elements, as its dataset failed: ", status.message()));
      queue_->End(status);
      return;
    }
    if (end) {
      Note("ends: its dataset had " + std::to_string(count) + " elements");
      queue_->End(absl::OutOfRangeError("The dataset of the infeed queue `" + queue_->name() + "` ended after " +
                                        std::to_string(count) +
                                        " elements, and the program needs more. Run fewer iterations, or "
                                        "`repeat()` the dataset."));
      return;
    }
    absl::Status fits = Check(tensors);
    if (!fits.ok()) {
      Note(absl::StrCat("ends: ", fits.message()));
      queue_->End(std::move(fits));
      return;
    }
    if (queue_->small()) {
      element.Copy(tensors);
      tensors.clear();
    } else {
      element.Hold(&tensors);
    }
    if (!queue_->Push(std::move(element), queue_->bytes()).ok()) {
      Note("ends, as its queue stops, after " + std::to_string(count) + " elements");
      return;
    }
  }
}

void Pump::Note(const std::string& text) const {
  core::Journal::Global().Note("the pump of `" + queue_->name() + "` " + text);
}

absl::Status Pump::GetFirst(std::vector<tf::Tensor>* element, bool* end) {
  absl::Status status = reader_->GetNext(element, end);
  if (!absl::IsFailedPrecondition(status) || !queue_->AwaitUse()) return status;
  Note(absl::StrCat("restarts, because a program needs its first element; the dataset had failed before: ",
                    status.message()));
  status = reader_->Begin();
  return status.ok() ? reader_->GetNext(element, end) : status;
}

absl::Status Pump::Check(const std::vector<tf::Tensor>& element) const {
  for (std::size_t i = 0; i < spec_.types.size() && i < element.size(); ++i) {
    if (element[i].dtype() == spec_.types[i] && element[i].shape() == spec_.shapes[i]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("The dataset of the infeed queue `", queue_->name(), "` yielded a tensor of shape ",
                     element[i].shape().DebugString(), " and type ", tf::DataTypeString(element[i].dtype()),
                     " at position ", i, " of an element, but its element spec has shape ",
                     spec_.shapes[i].DebugString(), " and type ", tf::DataTypeString(spec_.types[i]),
                     ". All elements of an infeed must have the shapes of the dataset's element spec; check what sets "
                     "them (`set_shape`, `output_signature`)."));
  }
  return absl::OkStatus();
}

absl::StatusOr<tf::core::RefCountPtr<PumpRegistry>> PumpRegistry::Of(tf::OpKernelContext* context) {
  tf::ResourceMgr* const resources = context->resource_manager();
  PumpRegistry* registry = nullptr;
  TF_RETURN_IF_ERROR(resources->LookupOrCreate<PumpRegistry>(resources->default_container(), "ipu_pumps", &registry,
                                                             MakeResource<PumpRegistry>));
  return tf::core::RefCountPtr<PumpRegistry>(registry);
}

PumpRegistry::~PumpRegistry() {
  std::vector<std::shared_ptr<Pump>> pumps;
  for (const auto& weak : pumps_) {
    if (auto pump = weak.lock()) pumps.push_back(std::move(pump));
  }
  for (const auto& pump : pumps) pump->Stop();
  const auto end = std::chrono::steady_clock::now() + kShutdownTimeout;
  for (const auto& pump : pumps) pump->Await(end - std::chrono::steady_clock::now());
}

void PumpRegistry::Hold(const std::shared_ptr<Pump>& pump) {
  const absl::MutexLock lock(&mutex_);
  pumps_.erase(std::remove_if(pumps_.begin(), pumps_.end(), [](const auto& weak) { return weak.expired(); }),
               pumps_.end());
  pumps_.push_back(pump);
}

}  // namespace tensorflow_ipu
