// The client that builds executables for TensorFlow's compiler of a device, with a cache on disk.
#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_COMPILER_CLIENT_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_COMPILER_CLIENT_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "tensorflow_ipu/kernels/core/file_cache.h"
#include "tensorflow_ipu/kernels/lowering/device_compiler.h"

namespace tensorflow_ipu {

// A folder of executables, and a key for what they depend on besides the program.
struct Executables {
  std::shared_ptr<const core::FileCache> files;
  std::string key;
};

// TensorFlow's client, which looks into the caches before it compiles. Thread-safe.
class CompilerClient : public tensorflow::XlaDeviceCompilerClient {
 public:
  // Without a cache of its own, it uses those that are set for the process.
  explicit CompilerClient(xla::LocalClient* client) : XlaDeviceCompilerClient(client) {}
  CompilerClient(xla::LocalClient* client, Executables own) : XlaDeviceCompilerClient(client), own_(std::move(own)) {}

  absl::StatusOr<std::unique_ptr<xla::LocalExecutable>> BuildExecutable(
      const tensorflow::XlaCompiler::Options& options,
      const tensorflow::XlaCompiler::CompilationResult& result) override;

 private:
  const Executables own_;
};

// Makes a compiler like TensorFlow's own one of each device. The caller owns it.
DeviceCompiler* NewDeviceCompiler(tensorflow::DeviceBase* device, Executables own);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_COMPILER_CLIENT_H_
