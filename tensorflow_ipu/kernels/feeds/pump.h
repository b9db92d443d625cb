// The thread that reads a dataset into an infeed queue, without Python's lock.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/common_runtime/process_function_library_runtime.h"
#include "tensorflow/core/data/unbounded_thread_pool.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/function_handle_cache.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow_ipu/kernels/feeds/feeds.h"
#include "tensorflow_ipu/kernels/host/python_end.h"

namespace tensorflow_ipu {

// The types and shapes that every element of a dataset must have.
struct ElementSpec {
  // Reads the attributes `types` and `shapes` of an op.
  explicit ElementSpec(const tensorflow::NodeDef& node);
  tensorflow::DataTypeVector types;
  std::vector<tensorflow::TensorShape> shapes;

  // Returns the size of each tensor in bytes.
  std::vector<std::size_t> sizes() const;
};

// Iterates over a dataset outside of the op that received it. A reader can outlive that op and its session.
//
// A reader may be destroyed at any time, on any thread, and its destruction may take long. A generator's `finally`
// block runs with it. TensorFlow's autotuner can miss the cancellation and sleep for up to a minute:
// `CancellationManager` calls back before it reports that it is cancelled, so `Model::OptimizeLoop` may wake up, see no
// cancellation, and wait again.
//
// Nothing that a reader uses can be destroyed before it, since it owns all of that:
//
// * references to the dataset and its iterators; its threads, its cancellation and the resources of its iteration;
// * copies of the functions that the dataset calls, with a runtime that contains all kernels. They are leaked if Python
//    has ended, because they hold Python objects;
// * copies of the session's devices on which these kernels run (see host_device.h). All readers of the session share
//    them. Their threads and memory belong to the process;
// * references to the resources of the session's devices, in which the kernels and the dataset look up and delete
//    resources. They are cleared when the session ends. Resources that were looked up stay alive, and later look-ups
//    fail.
//
// GetNext and Begin must be called by one thread at a time; Cancel may be called by any thread.
class DatasetReader {
 public:
  // `context` belongs to an op on the host whose input is `dataset`.
  static absl::StatusOr<std::unique_ptr<DatasetReader>> Make(tensorflow::OpKernelContext* context,
                                                             tensorflow::data::DatasetBase* dataset);
  ~DatasetReader();

  absl::Status GetNext(std::vector<tensorflow::Tensor>* element, bool* end) {
    return iterator_->GetNext(context_.get(), element, end);
  }

  // Restarts with the first element.
  absl::Status Begin();

  // Ends a waiting GetNext, and all later calls of it.
  void Cancel() { cancellation_.StartCancel(); }

 private:
  DatasetReader();

  absl::Status MakeLibrary(tensorflow::OpKernelContext* context);

  absl::Status MakeIterator();

  // Releasing a dataset releases its functions; see TracedFunctions.
  struct Unref {
    void operator()(tensorflow::data::DatasetBase* dataset) const {
      BeforePythonEnds([dataset] { dataset->Unref(); });
    }
  };
  using Dataset = std::unique_ptr<tensorflow::data::DatasetBase, Unref>;

  // The members are ordered such that later ones use earlier ones.
  TracedFunctions definitions_;
  std::shared_ptr<const tensorflow::DeviceMgr> devices_;
  Dataset dataset_;
  Dataset finalized_;  // With the dataset's options applied.
  std::unique_ptr<tensorflow::ProcessFunctionLibraryRuntime> process_library_;
  std::unique_ptr<tensorflow::FunctionHandleCache> functions_;
  tensorflow::ResourceMgr resources_;
  tensorflow::CancellationManager cancellation_;
  tensorflow::data::UnboundedThreadPool threads_;
  // Used for the whole iteration: creating a context takes as long as reading a small element.
  std::unique_ptr<tensorflow::data::IteratorContext> context_;
  std::unique_ptr<tensorflow::data::IteratorBase> iterator_;
};

// Runs from Start until the dataset ends or fails, the queue is closed, or Stop is called. Its thread owns all objects
// that it uses, so no other thread has to wait for a dataset that hangs in the user's code. Thread-safe.
class Pump {
 public:
  static absl::StatusOr<std::shared_ptr<Pump>> Start(std::unique_ptr<DatasetReader> reader,
                                                     std::shared_ptr<InfeedQueue> queue, ElementSpec spec);

  // Requests the thread to end and closes the queue, without waiting.
  void Stop();

  // Waits until the thread has released the dataset.
  void Await(std::chrono::nanoseconds limit) { done_.WaitForNotificationWithTimeout(absl::FromChrono(limit)); }

  // Waits until no pump runs. Returns false after `limit`.
  static bool AwaitAll(std::chrono::nanoseconds limit);

  Pump(std::unique_ptr<DatasetReader> reader, std::shared_ptr<InfeedQueue> queue, ElementSpec spec);

 private:
  void Run();

  // Writes to the journal. It is called before the end of the queue becomes visible.
  void Note(const std::string& text) const;

  // Reads the first element. If that fails, for instance because a table is not initialized yet, retries when a program
  // needs the element. TensorFlow's iterators read at that time as well.
  absl::Status GetFirst(std::vector<tensorflow::Tensor>* element, bool* end);

  // Releases the dataset without waiting for the pump's destruction, since other owners may keep the pump alive.
  void Release();

  absl::Status Check(const std::vector<tensorflow::Tensor>& element) const;

  absl::Mutex mutex_;
  std::unique_ptr<DatasetReader> reader_;  // Changed under mutex_, and only by the pump's thread.
  const std::shared_ptr<InfeedQueue> queue_;
  const ElementSpec spec_;
  absl::Notification done_;
};

// A resource of a device, with the pumps that the device's session has started. It stops these pumps when the device's
// resources are cleared.
class PumpRegistry : public tensorflow::ResourceBase {
 public:
  // Returns the registry of the op's device.
  static absl::StatusOr<tensorflow::core::RefCountPtr<PumpRegistry>> Of(tensorflow::OpKernelContext* context);

  ~PumpRegistry() override;

  void Hold(const std::shared_ptr<Pump>& pump);

  std::string DebugString() const override { return "The pumps of a device"; }

 private:
  absl::Mutex mutex_;
  std::vector<std::weak_ptr<Pump>> pumps_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu
