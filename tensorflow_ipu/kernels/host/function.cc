#include "tensorflow_ipu/kernels/host/function.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow_ipu/kernels/support/threads.h"
#include "tensorflow_ipu/kernels/support/waiting.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

// The replica index and the number of replicas.
constexpr std::size_t kOwnArguments = 2;

absl::Status CopyResults(absl::Span<const tf::Tensor> given, absl::Span<const HostResult> results) {
  if (given.size() < results.size()) return absl::InternalError("The function has fewer results than the program.");
  for (std::size_t i = 0; i < results.size(); ++i) {
    const HostResult& to = results[i];
    if (given[i].shape() != to.shape || given[i].TotalBytes() != to.bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "A tensor that the function returns to the program has the shape ", given[i].shape().DebugString(),
          ", but the program was compiled for ", to.shape.DebugString(), "."));
    }
    if (to.bytes > 0) std::memcpy(to.data, given[i].data(), to.bytes);
  }
  return absl::OkStatus();
}

thread_local int64_t device_of_thread = -1;

// While it exists, a program on `device` waits for the work of this thread.
class WorkFor {
 public:
  explicit WorkFor(int64_t device) : before_(std::exchange(device_of_thread, device)) {}
  ~WorkFor() { device_of_thread = before_; }
  WorkFor(const WorkFor&) = delete;
  WorkFor& operator=(const WorkFor&) = delete;

 private:
  const int64_t before_;
};

struct Step {
  Step(int64_t id, tf::ResourceMgr* resources, int64_t device)
      : container(id, [resources](const std::string& name) { resources->Cleanup(name).IgnoreError(); }),
        runner([device](std::function<void()> call) {
          core::Executor::Global().Run([device, call = std::move(call)](const absl::Status&) {
            const WorkFor work(device);
            call();
          });
        }) {}

  tf::ScopedStepContainer container;
  // Runs the closures that kernels schedule. On TensorFlow's threads, a closure could wait behind the very programs
  // that wait for it.
  std::function<void(std::function<void()>)> runner;
  std::vector<tf::Tensor> results;
  absl::Status status;
};

}  // namespace

absl::Status CloneLibrary(tf::OpKernelContext* context, const std::string& function,
                          std::unique_ptr<tf::FunctionLibraryDefinition>* definitions,
                          std::unique_ptr<tf::ProcessFunctionLibraryRuntime>* process_library,
                          tf::FunctionLibraryRuntime** library) {
  TF_RETURN_IF_ERROR(context->function_library()->Clone(definitions, process_library, library));
  if ((*definitions)->Find(function) != nullptr) return absl::OkStatus();
  return (*definitions)->AddLibrary(*context->function_library()->GetFunctionLibraryDefinition());
}

absl::StatusOr<std::shared_ptr<HostBody>> HostBody::Make(tf::OpKernelContext* context, const tf::NameAttrList& function,
                                                         std::vector<tf::Tensor> bound) {
  std::shared_ptr<HostBody> body(new HostBody());
  body->bound_ = std::move(bound);
  std::unique_ptr<tf::FunctionLibraryDefinition> definitions;
  const absl::Status cloned =
      CloneLibrary(context, function.name(), &definitions, &body->process_library_, &body->library_);
  body->definitions_.reset(definitions.release());
  TF_RETURN_IF_ERROR(cloned);
  tf::FunctionLibraryRuntime::InstantiateOptions options;
  options.target = body->library_->device()->name();
  // Operations run on the devices of their tables and variables; all others run on the host.
  options.is_multi_device_function = true;
  options.allow_soft_placement = true;
  options.config_proto.set_allow_soft_placement(true);
  const tf::FunctionDef* const definition = body->definitions_->Find(function.name());
  if (definition == nullptr) return absl::NotFoundError("Its function was not found.");
  for (const tf::OpDef::ArgDef& argument : definition->signature().input_arg()) {
    body->types_.push_back(argument.type());
    const std::size_t bound = options.input_devices.size() - kOwnArguments;  // Huge for the first two arguments.
    const bool placed = bound < body->bound_.size() && argument.type() == tf::DT_RESOURCE;
    options.input_devices.push_back(placed ? body->bound_[bound].scalar<tf::ResourceHandle>()().device()
                                           : options.target);
  }
  TF_RETURN_IF_ERROR(
      body->library_->Instantiate(function.name(), tf::AttrSlice(&function.attr()), options, &body->handle_));
  return body;
}

absl::StatusOr<std::vector<tf::Tensor>> HostBody::Arguments(int64_t replica, int64_t replicas,
                                                            absl::Span<const HostBuffer> passed) const {
  std::vector<tf::Tensor> all = {tf::Tensor(static_cast<int32_t>(replica)), tf::Tensor(static_cast<int32_t>(replicas))};
  all.insert(all.end(), bound_.begin(), bound_.end());
  if (all.size() + passed.size() != types_.size()) {
    return absl::InternalError("The program passes another number of tensors than the function has arguments.");
  }
  for (const HostBuffer& buffer : passed) {
    TF_ASSIGN_OR_RETURN(tf::Tensor copy, CopyOf(types_[all.size()], buffer));
    all.push_back(std::move(copy));
  }
  return all;
}

void HostBody::Run(int64_t device, const std::vector<tf::Tensor>& arguments, std::vector<HostResult> results,
                   tf::CancellationManager* cancellation, Done done) const {
  tf::FunctionLibraryRuntime::Options options;
  const auto step = std::make_shared<Step>(options.step_id, library_->device()->resource_manager(), device);
  const WorkFor work(device);
  options.step_container = &step->container;
  options.cancellation_manager = cancellation;
  options.runner = &step->runner;
  options.run_all_kernels_inline = true;
  options.create_rendezvous = true;
  // Called twice: when the function has ended and when `Run`, which uses the step, has returned. The later call ends
  // the step.
  const auto part_ended = [left = std::make_shared<std::atomic<int>>(2), step, results = std::move(results),
                           done = std::move(done)] {
    if (--*left == 0) done(step->status.ok() ? CopyResults(step->results, results) : step->status);
  };
  library_->Run(options, handle_, arguments, &step->results, [step, part_ended](const absl::Status& status) {
    step->status = status;
    part_ended();
  });
  part_ended();
}

int64_t HostFunction::DeviceOfThread() { return device_of_thread; }

void HostFunction::SetBody(std::shared_ptr<HostBody> body) {
  const absl::MutexLock lock(&mutex_);
  body_ = std::move(body);
}

void HostFunction::Run(int64_t replica, int64_t replicas, absl::Span<const HostBuffer> passed,
                       std::vector<HostResult> results, HostBody::Done done) {
  const auto cancellation = std::make_shared<tf::CancellationManager>();
  std::shared_ptr<HostBody> body;
  {
    const absl::MutexLock lock(&mutex_);
    if (core::interrupted.load(std::memory_order_relaxed)) {
      return done(absl::CancelledError("The run was interrupted before its host worked."));
    }
    body = body_;
    running_.insert(cancellation.get());
  }
  const auto end = [self = shared_from_this(), cancellation, done = std::move(done)](const absl::Status& status) {
    {
      const absl::MutexLock lock(&self->mutex_);
      self->running_.erase(cancellation.get());
    }
    // A failure of the function also cancels its remaining operations.
    const bool interrupted = cancellation->IsCancelled() && core::interrupted.load(std::memory_order_relaxed);
    done(interrupted ? absl::CancelledError("The run was interrupted while its host worked.") : status);
  };
  if (body == nullptr) return end(absl::InternalError("The tracing of its function did not finish."));
  absl::StatusOr<std::vector<tf::Tensor>> arguments = body->Arguments(replica, replicas, passed);
  if (!arguments.ok()) return end(arguments.status());
  core::Executor::Global().Run([cancellation, body, end, device = device_, arguments = *std::move(arguments),
                                results = std::move(results)](const absl::Status& started) {
    if (!started.ok()) return end(started);
    body->Run(device, arguments, results, cancellation.get(), end);
  });
}

void HostFunction::Cancel() {
  const absl::MutexLock lock(&mutex_);
  for (tf::CancellationManager* const running : running_) running->StartCancel();
}

}  // namespace tensorflow_ipu
