#include "tensorflow_ipu/kernels/lowering/program_kernels.h"

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>

#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/public/version.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

using tf::kernel_factory::OpKernelRegistrar;

// Declares the backend a symbolic device, for which TensorFlow ignores kernels that are registered for all devices at
// once (`DEVICE_DEFAULT`). Runs while the library is loaded, since TensorFlow stores the names of symbolic devices
// without a lock.
const bool symbolic = [] {
  tf::AddSymbolicExecutionDevice(kProgramBackend);
  return true;
}();

std::unordered_set<std::string>& OwnKernels() {
  static auto* const ops = new std::unordered_set<std::string>();
  return *ops;
}

std::unique_ptr<tf::OpKernel> KernelOfXla(tf::DeviceBase* device, const tf::NodeDef& node, absl::Status* status) {
  return tf::CreateOpKernel(tf::DeviceType(tf::DEVICE_CPU_XLA_JIT), device, device->GetAllocator({}), node,
                            TF_GRAPH_DEF_VERSION, status);
}

tf::OpKernel* MakeKernelOfXla(tf::OpKernelConstruction* construction) {
  absl::Status status;
  std::unique_ptr<tf::OpKernel> kernel =
      KernelOfXla(static_cast<tf::DeviceBase*>(construction->device()), construction->def(), &status);
  if (!status.ok()) construction->CtxFailure(status);
  return kernel.release();
}

}  // namespace

bool RegisterProgramKernel(const char* op, tf::OpKernel* (*make)(tf::OpKernelConstruction*)) {
  OwnKernels().insert(op);
  const OpKernelRegistrar registrar(tf::KernelDefBuilder(op).Device(kProgramBackend).Build(), op, make);
  return true;
}

void RegisterProgramBackend() {
  static const bool done = [] {
    tf::XlaOpRegistry::RegisterCompilationKernels();
    const tf::KernelList kernels = tf::GetFilteredRegisteredKernels([](const tf::KernelDef& kernel) {
      return kernel.device_type() == tf::DEVICE_CPU_XLA_JIT && OwnKernels().count(kernel.op()) == 0;
    });
    for (const tf::KernelDef& kernel : kernels.kernel()) {
      auto* const copy = new tf::KernelDef(kernel);  // The registrar owns it.
      copy->set_device_type(kProgramBackend);
      const OpKernelRegistrar registrar(copy, "XlaJitOp", MakeKernelOfXla);
    }
    return true;
  }();
  static_cast<void>(done);
}

void LowerAsXla(tf::XlaOpKernelContext* context) {
  absl::Status status;
  const std::unique_ptr<tf::OpKernel> kernel =
      KernelOfXla(context->op_kernel_context()->device(), context->op_kernel().def(), &status);
  OP_REQUIRES_OK(context, status);
  kernel->Compute(context->op_kernel_context());
}

}  // namespace tensorflow_ipu

extern "C" {

// Returns 1 if XLA has a kernel for an operation, a serialized NodeDef. XLA checks the same when it compiles a program.
int32_t ipu_compiles(const char* node, int64_t size) {
  tensorflow::NodeDef parsed;
  if (!parsed.ParseFromArray(node, static_cast<int>(size))) return 0;
  tensorflow_ipu::RegisterProgramBackend();
  const tensorflow::KernelDef* kernel = nullptr;
  return tensorflow::FindKernelDef(tensorflow::DeviceType(tensorflow_ipu::kProgramBackend), parsed, &kernel, nullptr)
      .ok();
}

}  // extern "C"
