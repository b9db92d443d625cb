// Functions that programs run on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "tensorflow/core/common_runtime/process_function_library_runtime.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow_ipu/kernels/host/kernel.h"
#include "tensorflow_ipu/kernels/host/python_end.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"
#include "tensorflow_ipu/kernels/support/registry.h"

namespace tensorflow_ipu {

struct HostResult {
  void* data;
  std::size_t bytes;
  tensorflow::TensorShape shape;
};

// Clones the function library of the op of `context`, because the op must not create kernels in that library itself.
// The clone contains `function` and all functions that it calls. In a dataset the library is an overlay of another
// library, and TensorFlow alone would clone only the lower one.
absl::Status CloneLibrary(tensorflow::OpKernelContext* context, const std::string& function,
                          std::unique_ptr<tensorflow::FunctionLibraryDefinition>* definitions,
                          std::unique_ptr<tensorflow::ProcessFunctionLibraryRuntime>* process_library,
                          tensorflow::FunctionLibraryRuntime** library);

// The body of a host function, as far as it was traced. Its bound tensors are those that it captures from outside of
// the program. Tracing may add results later; a program that was traced earlier uses only the first results. The
// arguments are the replica index, the number of replicas, the bound tensors, and the tensors that the program passes.
// Thread-safe.
class HostBody {
 public:
  // The body runs on the device of the op of `context`, with a copy of its functions. It must not outlive that device.
  static absl::StatusOr<std::shared_ptr<HostBody>> Make(tensorflow::OpKernelContext* context,
                                                        const tensorflow::NameAttrList& function,
                                                        std::vector<tensorflow::Tensor> bound);

  using Done = std::function<void(const absl::Status&)>;

  // Copies the program's tensors, since the function may keep them.
  absl::StatusOr<std::vector<tensorflow::Tensor>> Arguments(int64_t replica, int64_t replicas,
                                                            absl::Span<const HostBuffer> passed) const;

  // Runs the body on this thread for a program on an IPU device. Calls `done` once the results are written, perhaps on
  // another thread.
  void Run(int64_t device, const std::vector<tensorflow::Tensor>& arguments, std::vector<HostResult> results,
           tensorflow::CancellationManager* cancellation, Done done) const;

 private:
  HostBody() = default;

  TracedFunctions definitions_;  // Destroyed last.
  std::vector<tensorflow::Tensor> bound_;
  std::unique_ptr<tensorflow::ProcessFunctionLibraryRuntime> process_library_;
  tensorflow::FunctionLibraryRuntime* library_ = nullptr;
  tensorflow::FunctionLibraryRuntime::Handle handle_ = tensorflow::kInvalidHandle;
  std::vector<tensorflow::DataType> types_;
};

// A function that programs call by number. They may refer to it before its body is complete. Thread-safe.
class HostFunction : public std::enable_shared_from_this<HostFunction> {
 public:
  // `device` is the IPU device of the programs.
  explicit HostFunction(int64_t device) : device_(device) {}

  void SetBody(std::shared_ptr<HostBody> body);

  // Runs the body on a thread of the executor. Calls `done` on that thread, or before this function returns.
  void Run(int64_t replica, int64_t replicas, absl::Span<const HostBuffer> passed, std::vector<HostResult> results,
           HostBody::Done done);

  // Cancels the bodies that run, between operations and while an operation waits.
  void Cancel();

  // Returns the IPU device whose program waits for the work of this thread, or -1.
  static int64_t DeviceOfThread();

 private:
  const int64_t device_;
  absl::Mutex mutex_;
  std::shared_ptr<HostBody> body_ ABSL_GUARDED_BY(mutex_);
  std::set<tensorflow::CancellationManager*> running_ ABSL_GUARDED_BY(mutex_);
};

inline core::Registry<HostFunction>& HostFunctions() { return core::NeverDestroyed<core::Registry<HostFunction>>(); }

// The interface of C++ functions that users load: inputs, their sizes in elements, outputs, attributes and name.
using UserFunction = void (*)(const std::vector<const void*>& data, const std::vector<uint32_t>& number_of_elements,
                              const std::vector<void*>& outputs, const std::string& attributes,
                              const std::string& name);

inline core::Registry<UserFunction>& UserFunctions() { return core::NeverDestroyed<core::Registry<UserFunction>>(); }

}  // namespace tensorflow_ipu
