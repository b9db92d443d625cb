// TensorFlow's compiler of a device. Its headers include those of PjRt and through them MLIR's, which TensorFlow's
// wheel lacks. The PjRt names that they use are declared here instead; none of them is called.
#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_DEVICE_COMPILER_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_DEVICE_COMPILER_H_

#include <cstdint>

#ifndef XLA_PJRT_PJRT_CLIENT_H_
#define XLA_PJRT_PJRT_CLIENT_H_
namespace xla {
struct ExecuteOptions;
class PjRtBuffer;
class PjRtClient;
class PjRtDevice;
class PjRtLoadedExecutable {
 public:
  int64_t SizeOfGeneratedCodeInBytes() const;
};
}  // namespace xla
#endif  // XLA_PJRT_PJRT_CLIENT_H_

#ifndef TENSORFLOW_CORE_TFRT_COMMON_ASYNC_VALUE_TENSOR_H_
#define TENSORFLOW_CORE_TFRT_COMMON_ASYNC_VALUE_TENSOR_H_
namespace tensorflow {
class AsyncValueAllocator;
}  // namespace tensorflow
#endif  // TENSORFLOW_CORE_TFRT_COMMON_ASYNC_VALUE_TENSOR_H_

#include "tensorflow/compiler/jit/device_compiler.h"
#include "tensorflow/compiler/jit/xla_device_compiler_client.h"

namespace tensorflow_ipu {

using DeviceCompiler = tensorflow::DeviceCompiler<xla::LocalExecutable, xla::LocalClient>;

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_DEVICE_COMPILER_H_
