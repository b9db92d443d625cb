#include "tensorflow_ipu/kernels/replicas/launch.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/util/work_sharder.h"
#include "tensorflow_ipu/kernels/feeds/feeds.h"
#include "tensorflow_ipu/kernels/replicas/call_sites.h"
#include "tensorflow_ipu/kernels/replicas/copies.h"
#include "tensorflow_ipu/kernels/replicas/device_memory.h"
#include "tensorflow_ipu/kernels/replicas/device_state.h"
#include "tensorflow_ipu/kernels/replicas/workers.h"
#include "tensorflow_ipu/kernels/support/completions.h"
#include "tensorflow_ipu/kernels/support/threads.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

// The interval at which waits of a failed run are ended again, since a replica may begin to wait at any time until its
// program ends.
constexpr std::chrono::milliseconds kEndWaitsEvery{20};

// Aligns the replicas of a feed, which may be at different elements after a failure.
void Align(int64_t feed) {
  if (const std::shared_ptr<core::Outfeed> outfeed = Outfeeds().Find(feed)) outfeed->Align();
  if (const std::shared_ptr<InfeedQueue> queue = QueueOfInfeed(feed)) queue->Align();
}

}  // namespace

Launch::Launch(tf::OpKernelContext* context, Program program, std::string name, int64_t ordinal, int64_t replicas,
               std::function<void()> done)
    : context_(context),
      program_(program),
      name_(std::move(name)),
      ordinal_(ordinal),
      count_(replicas),
      done_(std::move(done)),
      replica_group_(ReplicaGroupOf(ordinal)),
      workers_(CurrentWorkers()),
      worker_(workers_ == nullptr ? 0 : workers_->worker()),
      worker_count_(workers_ == nullptr ? 1 : workers_->count()),
      streams_(RandomStreamsOf(ordinal)),
      running_(replicas) {}

void Launch::Start(bool may_block) {
  absl::Status status = core::Deadlines::Global().Prepare();
  if (status.ok()) status = Prepare();
  if (!status.ok()) {
    context_->SetStatus(status);
    done_();
    return;
  }
  BeginRun();
  EndWhenCancelled();
  if (count_ == 1 && may_block) {
    Run(0, absl::OkStatus());
    return;
  }
  for (int64_t replica = 1; replica < count_; ++replica) {
    core::Executor::Global().Run(
        [self = shared_from_this(), replica](const absl::Status& started) { self->Run(replica, started); });
  }
  core::Executor::Global().Run([self = shared_from_this()](const absl::Status& started) { self->Run(0, started); });
}

// A single replica needs no replica group.
void Launch::BeginRun() {
  if (count_ * worker_count_ == 1) return;
  std::vector<std::shared_ptr<core::CallSite>> sites;
  if (worker_count_ > 1) {
    core::Program program{name_, {}, count_, static_cast<int64_t>(core::ChunkBytes())};
    for (const int64_t feed : feeds_) {
      const std::shared_ptr<core::CallSite> site = CallSites().Find(feed);
      if (site == nullptr || !site->SpansWorkers(count_, worker_count_)) continue;
      program.collectives.push_back(site->what());
      sites.push_back(site);
    }
    if (!sites.empty()) distributed_run_ = NewDistributedRun(*workers_, ordinal_, std::move(program));
  }
  replica_group_->Begin(count_, worker_, worker_count_, distributed_run_, sites);
}

// If TensorFlow adds a field, check whether replicas share it.
static_assert(sizeof(tf::OpKernelContext::Params) == 424, "OpKernelContext::Params has other fields: see Prepare.");

absl::Status Launch::Prepare() {
  const int inputs = context_->num_inputs();
  replicas_.resize(count_);
  for (int i = 0; i < inputs; ++i) input_attributes_.push_back(context_->input_alloc_attr(i));
  for (int i = 0; i < context_->num_outputs(); ++i) output_attributes_.push_back(context_->output_alloc_attr(i));
  for (int i = 0; i < inputs; ++i) {
    if (context_->input_dtype(i) == tf::DT_RESOURCE) {
      if (count_ > 1 || InputCountsAllWorkers(i)) {
        TF_RETURN_IF_ERROR(PrepareResource(i));
        continue;
      }
      if (Copies::Any()) NoteWrite(i);
    }
    for (Replica& replica : replicas_) replica.inputs.push_back(context_->input(i));
  }
  for (Replica& replica : replicas_) {
    for (tf::Tensor& input : replica.inputs) replica.values.emplace_back(&input);
    tf::OpKernelContext::Params& params = replica.params;
    params.step_id = context_->step_id();
    params.op_kernel = program_.kernel;
    params.device = context_->device();
    params.output_attr_array = output_attributes_.data();
    params.resource_manager = context_->resource_manager();
    params.step_container = context_->step_container();
    params.rendezvous = context_->rendezvous();
    params.session_config = context_->session_config();
    params.session_metadata = context_->session_metadata();
    params.cancellation_manager = context_->cancellation_manager();
    params.inputs = replica.values;
    params.input_alloc_attrs = input_attributes_;
    params.function_library = program_.library;
    params.runner = context_->runner();
    replica.context = std::make_unique<tf::OpKernelContext>(&params, context_->num_outputs());
  }
  return absl::OkStatus();
}

absl::Status Launch::PrepareResource(int input) {
  const tf::ResourceHandle& handle = context_->input(input).scalar<tf::ResourceHandle>()();
  tf::core::RefCountPtr<tf::Var> variable;
  TF_RETURN_IF_ERROR(tf::LookupResource(context_, handle, &variable));
  std::function<tf::Tensor(int64_t)> value;
  if (const std::optional<core::ProgramState> state = core::ProgramState::OfVariable(handle.name())) {
    const int64_t feed = state->number;
    if (feed >= 0) feeds_.push_back(feed);  // Otherwise it is the program's order.
    value = [this, feed](int64_t replica) { return StateOf(feed, replica); };
  }
  std::vector<tf::ResourceHandle> handles;
  TF_RETURN_IF_ERROR(
      Copies::Global().Handles(context_->resource_manager(), handle, variable.get(), count_, value, &handles));
  for (int64_t replica = 0; replica < count_; ++replica) {
    tf::Tensor own(tf::DT_RESOURCE, tf::TensorShape({}));
    own.scalar<tf::ResourceHandle>()() = std::move(handles[replica]);
    replicas_[replica].inputs.push_back(std::move(own));
  }
  return absl::OkStatus();
}

// Returns true if the replicas of all workers use the object. Feeds are used by the replicas of this process only.
bool Launch::CountsAllWorkers(int64_t number) const {
  return worker_count_ > 1 && number >= 0 && Infeeds().Find(number) == nullptr && Outfeeds().Find(number) == nullptr;
}

bool Launch::InputCountsAllWorkers(int input) const {
  if (worker_count_ == 1) return false;
  const auto state = core::ProgramState::OfVariable(context_->input(input).scalar<tf::ResourceHandle>()().name());
  return state.has_value() && CountsAllWorkers(state->number);
}

tf::Tensor Launch::StateOf(int64_t number, int64_t replica) const {
  if (!CountsAllWorkers(number)) return TensorOf({number, replica, count_, 0});
  return TensorOf({number, worker_ * count_ + replica, worker_count_ * count_, 0});
}

void Launch::NoteWrite(int input) {
  tf::core::RefCountPtr<tf::Var> variable;
  if (tf::LookupResource(context_, tf::HandleFromInput(context_, input), &variable).ok()) {
    Copies::Global().NoteWrite(variable.get());
  }
}

void Launch::Run(int64_t replica, const absl::Status& started) {
  if (!started.ok()) {
    replicas_[replica].context->SetStatus(started);
    return Ended(replica);
  }
  // The replicas share the cores. Dividing each product among all cores would cost many transfers between threads.
  const tf::ScopedPerThreadMaxParallelism share(static_cast<int>(std::max<int64_t>(1, core::Cores() / count_)));
  tf::OpKernelContext* const context = replicas_[replica].context.get();
  {
    const RunMemory memory(context);
    program_.kernel->Compute(context);
  }
  Ended(replica);
}

void Launch::Ended(int64_t replica) {
  absl::Status status = replicas_[replica].context->status();
  if (std::optional<std::string> exception = TakeFault(streams_.get(), worker_ * count_ + replica);
      exception.has_value() && status.ok()) {
    status = absl::InvalidArgumentError(*std::move(exception));
  }
  if (!status.ok()) Fail(status);
  if (count_ * worker_count_ > 1) replica_group_->Leave(worker_ * count_ + replica);
  {
    const absl::MutexLock lock(&mutex_);
    if (--running_ > 0) return;
  }
  Finish();
}

void Launch::Fail(const absl::Status& status) {
  {
    const absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return;
    failure_ = status;
  }
  if (count_ * worker_count_ == 1) return;
  replica_group_->Abort(status);
  EndWaits();
}

void Launch::EndWhenCancelled() {
  tf::CancellationManager* const cancellation = context_->cancellation_manager();
  if (cancellation == nullptr) return;
  cancellation_token_ = cancellation->get_cancellation_token();
  cancellable_ = cancellation->RegisterCallback(cancellation_token_, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Fail(absl::CancelledError("The run of replicas was cancelled."));
  });
  if (!cancellable_) Fail(absl::CancelledError("The run of replicas was cancelled before it began."));
}

void Launch::EndWaits() {
  {
    const absl::MutexLock lock(&mutex_);
    if (running_ == 0) return;
  }
  for (const int64_t feed : feeds_) {
    if (const std::shared_ptr<InfeedQueue> queue = QueueOfInfeed(feed)) queue->Interrupt();
  }
  core::Deadlines::Global().Add(core::Deadlines::Clock::now() + kEndWaitsEvery, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->EndWaits();
  });
}

void Launch::Finish() {
  // Waits for a callback in progress: a later one would end the device's next run.
  if (cancellable_) context_->cancellation_manager()->DeregisterCallback(cancellation_token_);
  absl::Status failure;
  {
    const absl::MutexLock lock(&mutex_);
    failure = failure_;
  }
  if (distributed_run_ != nullptr) distributed_run_->End(failure);
  if (failure.ok()) {
    for (int i = 0; i < context_->num_outputs(); ++i) {
      const tf::TensorValue output = replicas_[0].context->release_output(i);
      if (output.tensor == nullptr) continue;
      context_->set_output(i, *output.tensor);
      delete output.tensor;
    }
  } else {
    RestoreStates(context_);
    for (const int64_t feed : feeds_) Align(feed);
    context_->SetStatus(failure);
  }
  replicas_.clear();  // The replicas refer to the op's context.
  done_();
}

}  // namespace tensorflow_ipu
