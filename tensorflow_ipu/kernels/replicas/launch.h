// One run of a program on all replicas of a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_ipu/kernels/collectives/rendezvous.h"
#include "tensorflow_ipu/kernels/numerics/random_streams.h"

namespace tensorflow_ipu {

// Runs the kernel of a compiled program once for each replica. All replicas have the inputs of the op of `context`, but
// separate states and copies of variables. The results of replica 0 are the op's results.
//
// Each replica has a separate thread, because a compiled program occupies its thread until it ends, and replicas that
// wait for each other must run at the same time. With several workers, replicas are numbered over all of them.
//
// The first failure, or a cancellation of the op, ends the run.
class Launch : public std::enable_shared_from_this<Launch> {
 public:
  struct Program {
    tensorflow::OpKernel* kernel = nullptr;
    tensorflow::FunctionLibraryRuntime* library = nullptr;
  };

  Launch(tensorflow::OpKernelContext* context, Program program, std::string name, int64_t ordinal, int64_t replicas,
         std::function<void()> done);

  // Runs all replicas and calls `done` when they have ended, with the status in the context. Only one launch per device
  // may be active. With `may_block`, a single replica runs on this thread.
  void Start(bool may_block);

 private:
  struct Replica {
    std::vector<tensorflow::Tensor> inputs;
    std::vector<tensorflow::TensorValue> values;
    tensorflow::OpKernelContext::Params params;
    std::unique_ptr<tensorflow::OpKernelContext> context;
  };

  absl::Status Prepare();
  absl::Status PrepareResource(int input);
  bool InputCountsAllWorkers(int input) const;
  bool CountsAllWorkers(int64_t number) const;
  tensorflow::Tensor StateOf(int64_t number, int64_t replica) const;
  void BeginRun();
  void NoteWrite(int input);  // Records that a single replica writes a variable, which may have copies.
  void Run(int64_t replica, const absl::Status& started);
  void Ended(int64_t replica);
  void Fail(const absl::Status& status);
  void EndWhenCancelled();
  void EndWaits();
  void Finish();

  tensorflow::OpKernelContext* const context_;
  const Program program_;
  const std::string name_;
  const int64_t ordinal_;
  const int64_t count_;  // The number of replicas in this process.
  const std::function<void()> done_;
  const std::shared_ptr<core::ReplicaGroup> replica_group_;
  const std::shared_ptr<const core::Workers> workers_;  // Null without other workers.
  const int64_t worker_;
  const int64_t worker_count_;
  const std::shared_ptr<const core::RandomStreams> streams_;

  // Written by Start, before the replicas run.
  std::vector<tensorflow::AllocatorAttributes> input_attributes_;
  std::vector<tensorflow::AllocatorAttributes> output_attributes_;
  std::vector<Replica> replicas_;
  std::vector<int64_t> feeds_;                             // The feeds and call sites that the program uses.
  std::shared_ptr<core::DistributedRun> distributed_run_;  // Null if no other worker takes part.
  bool cancellable_ = false;
  tensorflow::CancellationToken cancellation_token_{};

  absl::Mutex mutex_;
  int64_t running_ ABSL_GUARDED_BY(mutex_);  // The number of replicas that have not ended.
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu
