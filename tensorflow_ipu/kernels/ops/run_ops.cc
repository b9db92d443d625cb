// Ops of the host that run and compile programs, and the error of a program's ops outside of a program.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/common_runtime/process_function_library_runtime.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/device/ipu_device.h"
#include "tensorflow_ipu/kernels/host/function.h"
#include "tensorflow_ipu/kernels/lowering/compile.h"
#include "tensorflow_ipu/kernels/ops/kernel.h"
#include "tensorflow_ipu/kernels/replicas/device_turns.h"
#include "tensorflow_ipu/kernels/replicas/launch.h"
#include "tensorflow_ipu/kernels/support/metrics.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

// Runs the function `f`, which XLA compiles, on `shards` IPUs (a power of two) per replica. The number of replicas
// follows from the number of IPUs that the device has when the op runs. `differentiated`: a gradient is taken through
// the run, which is supported on one replica only. `shapes` are the known shapes of the results, for a device that only
// compiles. `timed`: the op counts and times the run, since Python does not see runs in a graph.
REGISTER_OP("IpuReplicatedRun")
    .Input("args: Tin")
    .Output("results: Tout")
    .Attr("Tin: list(type) >= 0")
    .Attr("Tout: list(type) >= 0")
    .Attr("f: func")
    .Attr("shards: int >= 1")
    .Attr("shapes: list(shape) >= 0 = []")
    .Attr("differentiated: bool = false")
    .Attr("timed: bool = false")
    .SetIsStateful()
    // Programs communicate with other workers. Without this, TensorFlow reports the loss of a worker as an internal
    // error.
    .SetIsDistributedCommunication()
    .SetShapeFn(tf::shape_inference::UnknownShape);

const core::Counter failed_runs("FailedGraphRuns");

// Returns the user's name of a function: `__inference_train_123` -> `train`.
std::string NameOf(absl::string_view function) {
  absl::ConsumePrefix(&function, "__inference_");
  const std::size_t number = function.find_last_not_of("0123456789");
  if (number + 1 < function.size() && function[number] == '_') function = function.substr(0, number);
  return std::string(function);
}

class ReplicatedRunOp : public tf::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    if (timed_) done = Timed(context, std::move(done));
    const int64_t ordinal = context->device()->parsed_name().id;
    const Configured device = ConfiguredAt(ordinal);
    const std::string name = absl::StrCat("`/device:IPU:", ordinal, "`");
    OP_REQUIRES_ASYNC(context, device.connection != Connection::kNever,
                      absl::FailedPreconditionError(absl::StrCat(
                          name, " cannot run a program: its `device_connection.type` is `NEVER`, which only compiles. ",
                          "Configure the system with `DeviceConnectionType.ALWAYS` to run.")),
                      done);
    if (device.connection == Connection::kPreCompile) {
      OP_REQUIRES_OK_ASYNC(context, Compile(context, function_), done);
      OP_REQUIRES_OK_ASYNC(context, SetZeros(context), done);
      done();
      return;
    }
    OP_REQUIRES_ASYNC(
        context, device.ipus >= shards_ && device.ipus % shards_ == 0,
        absl::FailedPreconditionError(absl::StrCat(
            "The program uses ", shards_, " IPUs, by its pipeline stages or shards, and ", name, " has ", device.ipus,
            ", which is not a multiple. Set `IPUConfig.auto_select_ipus` to a multiple of ", shards_, ".")),
        done);
    const int64_t replicas = device.ipus / shards_;
    OP_REQUIRES_ASYNC(context, replicas == 1 || !differentiated_,
                      absl::UnimplementedError(absl::StrCat(
                          "There is no gradient through a run on ", replicas, " replicas, which ", name,
                          " has: its inputs and results are replica 0's. Take the gradient inside of the program.")),
                      done);
    Launch::Program program;
    OP_REQUIRES_OK_ASYNC(context, Program(context, &program), done);
    const auto launch =
        std::make_shared<Launch>(context, program, NameOf(function_.name()), ordinal, replicas, [ordinal, done] {
          EndTurn(ordinal);
          done();
        });
    // If the turn begins at once, a single replica runs on this thread. This thread may block, since TensorFlow treats
    // the op as expensive and has scheduled other work elsewhere. If the turn begins later, it begins on the thread
    // that ends the previous run, which must not block.
    static thread_local const Launch* requesting = nullptr;
    requesting = launch.get();
    RequestTurn(context, ordinal, [context, launch, done](const absl::Status& turn) {
      const bool may_block = std::exchange(requesting, nullptr) == launch.get();
      OP_REQUIRES_OK_ASYNC(context, turn, done);
      launch->Start(may_block);
    });
    requesting = nullptr;
  }

 private:
  // Wraps `done` to record the run.
  static DoneCallback Timed(const tf::OpKernelContext* context, DoneCallback done) {
    return [context, done = std::move(done), begin = core::Samples::Clock::now()] {
      const auto end = core::Samples::Clock::now();
      core::Metrics::Global().graph_runs.Add(end, end - begin);
      if (!context->status().ok()) failed_runs.Add();
      done();
    };
  }

  // Sets the results of a device that only compiles to zeros.
  absl::Status SetZeros(tf::OpKernelContext* context) const {
    for (int i = 0; i < context->num_outputs(); ++i) {
      tf::TensorShape shape;
      if (static_cast<std::size_t>(i) >= shapes_.size() || !shapes_[i].AsTensorShape(&shape)) {
        return absl::FailedPreconditionError(absl::StrCat(
            "The device only compiles and returns zeros, because its `device_connection.type` is `PRE_COMPILE`. ",
            "Result ", i, " of the program has a shape that is not known before it runs: ", "use `tf.ensure_shape`."));
      }
      tf::Tensor* zeros = nullptr;
      TF_RETURN_IF_ERROR(context->allocate_output(i, shape, &zeros));
      if (shape.num_elements() > 0) std::memset(zeros->data(), 0, zeros->TotalBytes());
    }
    return absl::OkStatus();
  }

  // Sets `program` to TensorFlow's kernel for a call of the function on this device. XLA compiles the function at its
  // first run.
  absl::Status Program(tf::OpKernelContext* context, Launch::Program* program) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    if (program_ == nullptr) {
      // The library of the context cannot create kernels; a clone can.
      TF_RETURN_IF_ERROR(CloneLibrary(context, function_.name(), &definitions_, &process_library_, &library_));
      std::shared_ptr<const tf::NodeProperties> properties;
      TF_RETURN_IF_ERROR(
          tf::NodeProperties::CreateFromNodeDef(Call(), library_->GetFunctionLibraryDefinition(), &properties));
      tf::OpKernel* kernel = nullptr;
      TF_RETURN_IF_ERROR(library_->CreateKernel(properties, &kernel));
      program_.reset(kernel);
    }
    *program = {program_.get(), library_};
    return absl::OkStatus();
  }

  // Returns the node of a call of the function as a compiled program.
  tf::NodeDef Call() const {
    const tf::NodeDef& own = def();
    tf::NodeDef call;
    call.set_name(absl::StrCat(own.name(), "/program"));
    call.set_op("StatefulPartitionedCall");
    call.set_device(own.device());
    auto& attributes = *call.mutable_attr();
    for (const char* name : {"Tin", "Tout", "f"}) attributes[name] = own.attr().at(name);
    attributes["_XlaMustCompile"].set_b(true);
    for (int i = 0; i < num_inputs(); ++i) call.add_input(absl::StrCat("argument_", i));
    return call;
  }

  const tf::NameAttrList function_ = tf::GetNodeAttr<tf::NameAttrList>(def(), "f").value();
  const int64_t shards_ = tf::GetNodeAttr<int64_t>(def(), "shards").value();
  const std::vector<tf::PartialTensorShape> shapes_ =
      tf::GetNodeAttr<std::vector<tf::PartialTensorShape>>(def(), "shapes").value();
  const bool differentiated_ = tf::GetNodeAttr<bool>(def(), "differentiated").value();
  const bool timed_ = tf::GetNodeAttr<bool>(def(), "timed").value();
  absl::Mutex mutex_;
  // Written once.
  std::unique_ptr<tf::FunctionLibraryDefinition> definitions_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<tf::ProcessFunctionLibraryRuntime> process_library_ ABSL_GUARDED_BY(mutex_);
  tf::FunctionLibraryRuntime* library_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::unique_ptr<tf::OpKernel> program_ ABSL_GUARDED_BY(mutex_);
};

REGISTER_KERNEL_BUILDER(Name("IpuReplicatedRun").Device(tf::DEVICE_CPU), ReplicatedRunOp);

// Compiles `f` for `args` without running it. The executable is stored in the process's cache. With a key, which
// describes all that it depends on besides its program, the executable is returned instead, with a name derived from
// the key and the program.
REGISTER_OP("IpuCompile")
    .Input("args: Tin")
    .Output("name: string")
    .Output("executable: string")
    .Attr("Tin: list(type) >= 0")
    .Attr("f: func")
    .Attr("key: string = ''")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Scalar());
      context->set_output(1, context->Scalar());
      return absl::OkStatus();
    });

absl::Status CompileProgram(tf::OpKernelContext* context) {
  const tf::NodeDef& node = context->op_kernel().def();
  const auto function = tf::GetNodeAttr<tf::NameAttrList>(node, "f").value();
  const auto key = tf::GetNodeAttr<std::string>(node, "key").value();
  KeptExecutable kept;
  TF_RETURN_IF_ERROR(Compile(context, function, key, key.empty() ? nullptr : &kept));
  for (std::string* const text : {&kept.name, &kept.packed}) {
    tf::Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(text == &kept.name ? 0 : 1, {}, &output));
    output->scalar<tf::tstring>()() = *text;
  }
  return absl::OkStatus();
}

REGISTER_KERNEL_BUILDER(Name("IpuCompile").Device(tf::DEVICE_CPU), FunctionOp<CompileProgram>);

// Returns the error of a program's op that runs outside of a program.
absl::Status RefuseOutsideOfPrograms(tf::OpKernelContext* context) {
  return absl::FailedPreconditionError(
      absl::StrCat("`", context->op_kernel().type_string(),
                   "` runs only in a compiled program. Call the function that uses it with `IPUStrategy.run` (in a "
                   "graph for a session: with `compiler.compile` inside of `ipu_scope`), or decorate it with "
                   "`@tf.function(jit_compile=True)`."));
}

const bool uncompiled_registered = [] {
  for (const char* const op :
       {"IpuAllGather", "IpuAllReduce", "IpuAllToAll", "IpuBroadcast", "IpuHostCall", "IpuHostResult",
        "IpuInfeedDequeue", "IpuJoinOrders", "IpuMicroBatches", "IpuOutfeedEnqueue", "IpuRandomSeed", "IpuRandomStream",
        "IpuReduceScatter", "IpuReplicaIndex", "IpuUserOperation"}) {
    const tf::kernel_factory::OpKernelRegistrar registrar(
        tf::KernelDefBuilder(op).Device(tf::DEVICE_CPU).Build(), op,
        [](tf::OpKernelConstruction* construction) -> tf::OpKernel* {
          return new FunctionOp<RefuseOutsideOfPrograms>(construction);
        });
  }
  return true;
}();

}  // namespace
}  // namespace tensorflow_ipu
