// One run of a program on all replicas of a device at once.
#ifndef TENSORFLOW_IPU_KERNELS_REPLICAS_LAUNCH_H_
#define TENSORFLOW_IPU_KERNELS_REPLICAS_LAUNCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/random_streams.h"
#include "tensorflow_ipu/kernels/core/rendezvous.h"

namespace tensorflow_ipu {

// Runs `program`, the kernel of a compiled program, once a replica, each on a thread of its own, with the inputs of the
// op behind `context`. Of these, what names a feed or the site of a collective becomes the replica's own lane, and a
// variable becomes the replica's own copy. Replica 0's results are the op's.
//
// Why each has a thread: the kernel of a compiled program holds its thread until the program ends, and TensorFlow has
// as many threads as the machine has cores. Replicas that wait for each other in collectives have to be on their way
// all at once.
//
// Where several workers run programs together, replicas and what names a collective to them are numbered over all.
//
// The first failure ends the run: the others' collectives and waits for data fail, and its error is the run's. So does
// whoever cancels the op, such as a session whose time is up.
class Launch : public std::enable_shared_from_this<Launch> {
 public:
  // The kernel, and the library whose functions it calls.
  struct Program {
    tensorflow::OpKernel* kernel = nullptr;
    tensorflow::FunctionLibraryRuntime* library = nullptr;
  };

  // `name` is the program's, for messages.
  Launch(tensorflow::OpKernelContext* context, Program program, std::string name, int64_t ordinal, int64_t replicas,
         std::function<void()> done);

  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  // `done` is called when all replicas have ended, or at once on failure; the context has the outcome by then. One
  // launch a device at a time. With `may_block`, a replica that is alone runs on this thread, and has ended on return.
  void Start(bool may_block);

 private:
  // A context and what it points to.
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
  void NoteWrite(int input);  // The variable is a single replica's to write; others of other programs have copies.
  void Run(int64_t replica, const core::Outcome& started);
  void Ended(int64_t replica);
  void Fail(const absl::Status& status);
  void EndWhenCancelled();
  void EndWaits();
  void Finish();

  tensorflow::OpKernelContext* const context_;
  const Program program_;
  const std::string name_;
  const int64_t ordinal_;
  const int64_t count_;  // Of this process.
  const std::function<void()> done_;
  const std::shared_ptr<core::ReplicaGroup> replica_group_;
  const std::shared_ptr<const core::Workers> workers_;  // Null where this process is alone.
  const int64_t worker_;
  const int64_t worker_count_;
  const std::shared_ptr<const core::RandomStreams> streams_;  // By which a program names the device.

  // Written by Start, before the replicas run.
  std::vector<tensorflow::AllocatorAttributes> input_attributes_;
  std::vector<tensorflow::AllocatorAttributes> output_attributes_;
  std::vector<Replica> replicas_;
  std::vector<int64_t> feeds_;                             // The numbers of feeds and sites that the program uses.
  std::shared_ptr<core::DistributedRun> distributed_run_;  // Null where no other worker takes part.
  bool cancellable_ = false;
  tensorflow::CancellationToken cancellation_token_{};

  core::Mutex mutex_;
  int64_t running_ IPU_GUARDED_BY(mutex_);  // Replicas that have not ended.
  absl::Status failure_ IPU_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_REPLICAS_LAUNCH_H_
