// `IpuReplicatedRun`: runs a compiled program on all replicas that the device has room for.
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/process_function_library_runtime.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/core/turns.h"
#include "tensorflow_ipu/kernels/device/configured.h"
#include "tensorflow_ipu/kernels/replicas/launch.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// `f` is a function that XLA compiles, of `shards` IPUs (a power of two). The device's IPUs decide how many replicas
// run.
REGISTER_OP("IpuReplicatedRun")
    .Input("args: Tin")
    .Output("results: Tout")
    .Attr("Tin: list(type) >= 0")
    .Attr("Tout: list(type) >= 0")
    .Attr("f: func")
    .Attr("shards: int >= 1")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::UnknownShape);

// Fails where the device has not `ipus` IPUs, or with `why_not`, whatever it has.
REGISTER_OP("IpuExpectIpus")
    .Attr("ipus: int >= 1")
    .Attr("why_not: string = ''")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

namespace {

class ExpectIpusOp : public tf::OpKernel {
 public:
  explicit ExpectIpusOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("ipus", &expected_));
    OP_REQUIRES_OK(construction, construction->GetAttr("why_not", &why_not_));
  }

  void Compute(tf::OpKernelContext* context) override {
    OP_REQUIRES(context, why_not_.empty(), absl::FailedPreconditionError(why_not_));
    const int64_t ordinal = context->device()->parsed_name().id;
    const int64_t ipus = IpusOf(ordinal);
    OP_REQUIRES(context, ipus == expected_,
                absl::FailedPreconditionError(
                    absl::StrCat("This function holds a program that was traced while `/device:IPU:", ordinal, "` had ",
                                 expected_, " IPU(s), and it has ", ipus,
                                 " now. Make the `tf.function` (or the graph) anew after the system was "
                                 "configured.")));
  }

 private:
  int64_t expected_;
  std::string why_not_;
};

REGISTER_KERNEL_BUILDER(Name("IpuExpectIpus").Device(tf::DEVICE_CPU), ExpectIpusOp);

// Runs of one device come one after the other: their replicas meet in the device's one domain.
core::Turns& TurnsOf(int64_t device) {
  static auto* const mutex = new std::mutex();
  static auto* const turns = new std::map<int64_t, core::Turns>();
  std::lock_guard<std::mutex> lock(*mutex);
  return (*turns)[device];
}

class ReplicatedRunOp : public tf::AsyncOpKernel {
 public:
  explicit ReplicatedRunOp(tf::OpKernelConstruction* construction) : AsyncOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("shards", &shards_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const int64_t ordinal = context->device()->parsed_name().id;
    const int64_t ipus = IpusOf(ordinal);
    OP_REQUIRES_ASYNC(context, ipus >= shards_ && ipus % shards_ == 0,
                      absl::InternalError(absl::StrCat(
                          "The program uses ", shards_, " IPUs, by its pipeline stages or shards, and `",
                          "/device:IPU:", ordinal, "` has ", ipus,
                          ", which is no multiple. Set `IPUConfig.auto_select_ipus` to a multiple of ", shards_, ".")),
                      done);
    Launch::Program program;
    OP_REQUIRES_OK_ASYNC(context, Program(context, &program), done);
    core::Turns& turns = TurnsOf(ordinal);
    const auto launch =
        std::make_shared<Launch>(context, program, ordinal, ipus / shards_, [&turns, done = std::move(done)] {
          turns.End();
          done();
        });
    turns.Take([launch] { launch->Start(); });
  }

 private:
  // The kernel that TensorFlow makes for a call of the function on this device; XLA compiles it at its first run.
  absl::Status Program(tf::OpKernelContext* context, Launch::Program* program) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (program_ == nullptr) {
      // The library at hand lends its functions and makes no kernels; a clone of its own does.
      absl::Status status = context->function_library()->Clone(&definitions_, &process_library_, &library_);
      if (!status.ok()) return status;
      std::shared_ptr<const tf::NodeProperties> properties;
      status = tf::NodeProperties::CreateFromNodeDef(Call(), library_->GetFunctionLibraryDefinition(), &properties);
      if (!status.ok()) return status;
      tf::OpKernel* made = nullptr;
      status = library_->CreateKernel(properties, &made);
      if (!status.ok()) return status;
      program_.reset(made);
    }
    *program = {program_.get(), library_};
    return absl::OkStatus();
  }

  // The node of a call of the function, of which TensorFlow makes the kernel of a compiled program.
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

  int64_t shards_;
  std::mutex mutex_;
  // All below are guarded by mutex_, and written once.
  std::unique_ptr<tf::FunctionLibraryDefinition> definitions_;
  std::unique_ptr<tf::ProcessFunctionLibraryRuntime> process_library_;
  tf::FunctionLibraryRuntime* library_ = nullptr;
  std::unique_ptr<tf::OpKernel> program_;
};

REGISTER_KERNEL_BUILDER(Name("IpuReplicatedRun").Device(tf::DEVICE_CPU), ReplicatedRunOp);

}  // namespace
}  // namespace tensorflow_ipu
