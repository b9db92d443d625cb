// Functions of TensorFlow's that a program has the host run in its midst.
#ifndef TENSORFLOW_IPU_KERNELS_HOST_FUNCTION_H_
#define TENSORFLOW_IPU_KERNELS_HOST_FUNCTION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/core/common_runtime/process_function_library_runtime.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/registry.h"
#include "tensorflow_ipu/kernels/host/kernel.h"
#include "tensorflow_ipu/kernels/host/python_end.h"

namespace tensorflow_ipu {

// The memory of a result, and what was traced of its shape.
struct HostResult {
  void* data;
  std::size_t bytes;
  tensorflow::TensorShape shape;
};

// What was traced of the function so far, with the tensors that it has from elsewhere than the program: tables and the
// like. A program that was traced before results were added wants the first of them alone, and gets these.
//
// The function's arguments are the replica's number, how many replicas there are, the bound tensors, and what the
// program passes.
//
// Thread-safe.
class HostBody {
 public:
  // A body that runs on the device of the op behind `context`, with functions of its own: it lives on when the op goes,
  // though not when the device does.
  static absl::StatusOr<std::shared_ptr<HostBody>> Make(tensorflow::OpKernelContext* context,
                                                        const tensorflow::NameAttrList& function,
                                                        std::vector<tensorflow::Tensor> bound);

  using Done = std::function<void(const absl::Status&)>;

  // All arguments of a call. The program's are copied: what runs may keep them.
  absl::StatusOr<std::vector<tensorflow::Tensor>> Arguments(int64_t lane, int64_t lanes,
                                                            absl::Span<const HostBuffer> passed) const;

  // Runs the body on this thread, and calls `done` once its results are where they are to be: on this thread, or on
  // another one where an operation ended there.
  void Run(const std::vector<tensorflow::Tensor>& arguments, std::vector<HostResult> results,
           tensorflow::CancellationManager* cancellation, Done done) const;

 private:
  HostBody() = default;

  TracedFunctions definitions_;  // Goes last.
  std::vector<tensorflow::Tensor> bound_;
  std::unique_ptr<tensorflow::ProcessFunctionLibraryRuntime> process_library_;
  tensorflow::FunctionLibraryRuntime* library_ = nullptr;
  tensorflow::FunctionLibraryRuntime::Handle handle_ = tensorflow::kInvalidHandle;
  std::vector<tensorflow::DataType> types_;  // Of all arguments.
};

// What the programs know by a number: they begin to use it before its body is whole.
//
// Thread-safe.
class HostFunction : public std::enable_shared_from_this<HostFunction> {
 public:
  void SetBody(std::shared_ptr<HostBody> body);

  // See HostBody. The body runs on a thread of the executor, and `done` comes there, or before this returns.
  void Run(int64_t lane, int64_t lanes, absl::Span<const HostBuffer> passed, std::vector<HostResult> results,
           HostBody::Done done);

  // Has what runs now end where TensorFlow can end it: between operations, and where one waits.
  void Cancel();

 private:
  core::Mutex mutex_;
  std::shared_ptr<HostBody> body_ IPU_GUARDED_BY(mutex_);
  std::set<tensorflow::CancellationManager*> running_ IPU_GUARDED_BY(mutex_);
};

core::Registry<HostFunction>& HostFunctions();

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_FUNCTION_H_
