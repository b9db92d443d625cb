#include <cstdint>

#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow_ipu/kernels/lowering/program_kernels.h"

extern "C" {

// Whether XLA has a kernel for an operation, a serialized NodeDef. XLA asks the same when it compiles a program.
int32_t ipu_compiles(const char* node, int64_t size) {
  tensorflow::NodeDef parsed;
  if (!parsed.ParseFromArray(node, static_cast<int>(size))) return 0;
  tensorflow_ipu::RegisterProgramBackend();
  const tensorflow::KernelDef* kernel = nullptr;
  return tensorflow::FindKernelDef(tensorflow::DeviceType(tensorflow_ipu::kProgramBackend), parsed, &kernel, nullptr)
      .ok();
}

}  // extern "C"
