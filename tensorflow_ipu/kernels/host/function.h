// Functions that a program has the host run.
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

// Clones the library of the op of `context`, which makes no kernels itself, with `function` and what it calls. In a
// dataset that library lies over another one, which is what TensorFlow clones.
absl::Status CloneLibrary(tensorflow::OpKernelContext* context, const std::string& function,
                          std::unique_ptr<tensorflow::FunctionLibraryDefinition>* definitions,
                          std::unique_ptr<tensorflow::ProcessFunctionLibraryRuntime>* process_library,
                          tensorflow::FunctionLibraryRuntime** library);

// What was traced of the function so far, with the bound tensors that come from outside of the program. A program that
// was traced earlier wants the first results alone. The arguments are the replica index, the number of replicas, the
// bound tensors, and what the program passes. Thread-safe.
class HostBody {
 public:
  // Runs on the device of the op of `context`, which it must not outlive, with a copy of its functions.
  static absl::StatusOr<std::shared_ptr<HostBody>> Make(tensorflow::OpKernelContext* context,
                                                        const tensorflow::NameAttrList& function,
                                                        std::vector<tensorflow::Tensor> bound);

  using Done = std::function<void(const absl::Status&)>;

  // Copies what the program passes: the function may keep it.
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

// Programs refer to it by number before its body is complete. Thread-safe.
class HostFunction : public std::enable_shared_from_this<HostFunction> {
 public:
  // Of programs on this IPU device.
  explicit HostFunction(int64_t device) : device_(device) {}

  void SetBody(std::shared_ptr<HostBody> body);

  // Runs the body on a thread of the executor, where it calls `done`, or before this returns.
  void Run(int64_t replica, int64_t replicas, absl::Span<const HostBuffer> passed, std::vector<HostResult> results,
           HostBody::Done done);

  // Cancels what runs, between operations and where one waits.
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
