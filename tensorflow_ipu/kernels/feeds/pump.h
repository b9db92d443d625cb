// The thread that reads a dataset's iterator into an infeed queue, away from Python and its lock.
#ifndef TENSORFLOW_IPU_KERNELS_FEEDS_PUMP_H_
#define TENSORFLOW_IPU_KERNELS_FEEDS_PUMP_H_

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/kernels/data/iterator_ops.h"
#include "tensorflow_ipu/kernels/feeds/infeeds.h"

namespace tensorflow_ipu {

// What every element of a dataset must be.
struct ElementSpec {
  tensorflow::DataTypeVector types;
  std::vector<tensorflow::TensorShape> shapes;
};

// Reads an iterator outside of the op that got hold of it: a stand-in for that op's context, which lives as long as the
// reading does.
//
// GetNext is for one thread; Cancel for any.
class IteratorReader {
 public:
  // `context` is that of an op on the host that was given `iterator`.
  static absl::StatusOr<std::unique_ptr<IteratorReader>> Make(
      tensorflow::OpKernelContext* context, tensorflow::core::RefCountPtr<tensorflow::data::IteratorResource> iterator);

  absl::Status GetNext(InfeedElement* element, bool* end);

  // Ends a GetNext that waits, and all later ones.
  void Cancel() { cancellation_.StartCancel(); }

 private:
  IteratorReader() = default;

  tensorflow::core::RefCountPtr<tensorflow::data::IteratorResource> iterator_;
  std::unique_ptr<tensorflow::FunctionLibraryDefinition> definitions_;
  std::unique_ptr<tensorflow::ProcessFunctionLibraryRuntime> process_library_;
  std::function<void(std::function<void()>)> runner_;
  tensorflow::CancellationManager cancellation_;
  tensorflow::OpKernelContext::Params params_;
  std::unique_ptr<tensorflow::OpKernelContext> context_;
};

// Starts with its making; ends with the dataset, with the dataset's error, with the queue, or when stopped. Its thread
// keeps what it works on alive, so nobody has to wait for a dataset that is stuck in the user's code.
//
// Thread-safe.
class Pump {
 public:
  static std::shared_ptr<Pump> Start(std::unique_ptr<IteratorReader> reader, std::shared_ptr<InfeedQueue> queue,
                                     ElementSpec spec);

  // Asks the thread to end, and closes the queue. Does not wait.
  void Stop();

  // Waits until the thread no longer touches the dataset, at most so long.
  void Await(std::chrono::nanoseconds limit) { done_.WaitForNotificationWithTimeout(absl::FromChrono(limit)); }

  // Waits until no pump of the process runs, at most so long. Returns whether none does.
  static bool AwaitAll(std::chrono::nanoseconds limit);

  Pump(std::unique_ptr<IteratorReader> reader, std::shared_ptr<InfeedQueue> queue, ElementSpec spec);

 private:
  void Run();

  // Why the element does not fit, or Ok.
  core::Outcome Check(const InfeedElement& element) const;

  const std::unique_ptr<IteratorReader> reader_;
  const std::shared_ptr<InfeedQueue> queue_;
  const ElementSpec spec_;
  absl::Notification done_;
};

// Stops its pumps when the device whose threads and functions they use goes (a closed session, say). Lives in that
// device's resource manager, which TensorFlow clears before the device.
class PumpAnchor : public tensorflow::ResourceBase {
 public:
  ~PumpAnchor() override;

  void Hold(const std::shared_ptr<Pump>& pump);

  std::string DebugString() const override { return "The pumps of a device"; }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Pump>> pumps_;  // Guarded by mutex_.
};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_FEEDS_PUMP_H_
