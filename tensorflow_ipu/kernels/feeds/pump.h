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

// What every element of a dataset must be.
struct ElementSpec {
  // Of the attributes `types` and `shapes` of an op.
  explicit ElementSpec(const tensorflow::NodeDef& node);
  tensorflow::DataTypeVector types;
  std::vector<tensorflow::TensorShape> shapes;

  // Of each tensor, in bytes.
  std::vector<std::size_t> sizes() const;
};

// Iterates over a dataset outside of the op that was given it, and beyond the end of that op, and of its session.
//
// It may go at any time after its making, on any thread, and take as long as it likes: a generator's `finally` runs
// with it, and TensorFlow's autotuner can miss the signal to end and sleep on for up to a minute.
// (`CancellationManager` calls back before it says that it is cancelled, so that `Model::OptimizeLoop` may wake up, see
// nothing, and wait again.) Nothing is left that could go before it, since it owns all that it touches:
//
//  * its dataset and iterators by reference, its threads, its cancellation and the resources of its iteration;
//  * copies of the functions that the dataset calls, with a runtime of its own and, in it, all kernels; they stay where
//    Python has ended, of which they hold objects;
//  * copies of the session's devices for these kernels to run on (see host_device.h), shared by all readers of the
//    session, with threads and memory that are the process's;
//  * the resources of the session's devices by reference, for the kernels and the dataset to look up and to delete in.
//    They are cleared when the session ends; from then on what was looked up stays, and a look-up finds nothing.
//
// GetNext and Begin are for one thread; Cancel for any.
class DatasetReader {
 public:
  // `context` is that of an op on the host that was given `dataset`.
  static absl::StatusOr<std::unique_ptr<DatasetReader>> Make(tensorflow::OpKernelContext* context,
                                                             tensorflow::data::DatasetBase* dataset);
  ~DatasetReader();

  absl::Status GetNext(std::vector<tensorflow::Tensor>* element, bool* end) {
    return iterator_->GetNext(context_.get(), element, end);
  }

  // Starts anew with the first element.
  absl::Status Begin();

  // Ends a waiting GetNext and all later ones.
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

  // Later members use earlier ones.
  TracedFunctions definitions_;
  std::shared_ptr<const tensorflow::DeviceMgr> devices_;
  Dataset dataset_;
  Dataset finalized_;  // With the dataset's options applied.
  std::unique_ptr<tensorflow::ProcessFunctionLibraryRuntime> process_library_;
  std::unique_ptr<tensorflow::FunctionHandleCache> functions_;
  tensorflow::ResourceMgr resources_;
  tensorflow::CancellationManager cancellation_;
  tensorflow::data::UnboundedThreadPool threads_;
  // One for the whole iteration: making one takes as long as a small element.
  std::unique_ptr<tensorflow::data::IteratorContext> context_;
  std::unique_ptr<tensorflow::data::IteratorBase> iterator_;
};

// Runs from Start until the dataset ends or fails, the queue is closed, or Stop. Its thread owns what it uses, so
// nobody waits for a dataset that is stuck in the user's code. Thread-safe.
class Pump {
 public:
  static absl::StatusOr<std::shared_ptr<Pump>> Start(std::unique_ptr<DatasetReader> reader,
                                                     std::shared_ptr<InfeedQueue> queue, ElementSpec spec);

  // Asks the thread to end, and closes the queue. Does not wait.
  void Stop();

  // Waits until the thread has released the dataset.
  void Await(std::chrono::nanoseconds limit) { done_.WaitForNotificationWithTimeout(absl::FromChrono(limit)); }

  // Waits until no pump runs. Returns false after `limit`.
  static bool AwaitAll(std::chrono::nanoseconds limit);

  Pump(std::unique_ptr<DatasetReader> reader, std::shared_ptr<InfeedQueue> queue, ElementSpec spec);

 private:
  void Run();

  // Logs before the end of the queue is visible.
  void Note(const std::string& text) const;

  // If the first read fails, for instance as a table is not initialized, tries again when a program asks for the
  // element, which is when TensorFlow's iterators read.
  absl::Status GetFirst(std::vector<tensorflow::Tensor>* element, bool* end);

  // Releases the dataset, since others may keep the pump.
  void Release();

  absl::Status Check(const std::vector<tensorflow::Tensor>& element) const;

  absl::Mutex mutex_;
  std::unique_ptr<DatasetReader> reader_;  // Changed under mutex_, by the pump's thread alone.
  const std::shared_ptr<InfeedQueue> queue_;
  const ElementSpec spec_;
  absl::Notification done_;
};

// Stops its pumps when the resources of the device whose session started them are cleared.
class PumpRegistry : public tensorflow::ResourceBase {
 public:
  // Of the device of an op.
  static absl::StatusOr<tensorflow::core::RefCountPtr<PumpRegistry>> Of(tensorflow::OpKernelContext* context);

  ~PumpRegistry() override;

  void Hold(const std::shared_ptr<Pump>& pump);

  std::string DebugString() const override { return "The pumps of a device"; }

 private:
  absl::Mutex mutex_;
  std::vector<std::weak_ptr<Pump>> pumps_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu
