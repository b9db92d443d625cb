#include "tensorflow_ipu/kernels/replicas/workers.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/collectives/exchange.h"
#include "tensorflow_ipu/kernels/collectives/mpi_communicator.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"
#include "tensorflow_ipu/kernels/support/waiting.h"

namespace tensorflow_ipu {

namespace {

struct Current {
  absl::Mutex mutex;
  core::MpiLibrary library ABSL_GUARDED_BY(mutex);
  std::unique_ptr<core::MpiJoin> join ABSL_GUARDED_BY(mutex);
  std::shared_ptr<core::MpiCommunicator> communicator ABSL_GUARDED_BY(mutex);
  std::shared_ptr<const core::Workers> workers ABSL_GUARDED_BY(mutex);
};

Current& TheWorkers() { return core::NeverDestroyed<Current>(); }

core::Runs& AllRuns() { return core::NeverDestroyed<core::Runs>(); }

// The process that has opened the workers. Its forked children must not end MPI.
pid_t opener = 0;

// Called by MPI at the beginning of every `MPI_Finalize`, when it deletes the attribute of a communicator.
int LeaveWorkers(core::MpiLibrary::Handle, int, void*, void*) {
  if (getpid() != opener) return 0;
  std::shared_ptr<core::MpiCommunicator> communicator;
  {
    const absl::MutexLock lock(&TheWorkers().mutex);
    communicator = TheWorkers().communicator;
  }
  if (communicator != nullptr) communicator->Leave();
  return 0;
}

absl::Status LeaveWorkersAtFinalize(const core::MpiLibrary& mpi) {
  int key = 0;
  const auto copies_nothing = [](core::MpiLibrary::Handle, int, void*, void*, void*, int* copied) {
    return *copied = 0;
  };
  absl::Status status =
      mpi.StatusOf(mpi.Comm_create_keyval(copies_nothing, LeaveWorkers, &key, nullptr), "MPI_Comm_create_keyval");
  return status.ok() ? mpi.StatusOf(mpi.Comm_set_attr(mpi.self, key, nullptr), "MPI_Comm_set_attr") : status;
}

// Called by the C library with the exit status of the process, which Python's exit handlers do not get.
void EndMpi(int status, void*) {
  if (getpid() != opener) return;
  core::MpiLibrary mpi;
  bool joins = false;
  {
    const absl::MutexLock lock(&TheWorkers().mutex);
    mpi = TheWorkers().library;
    joins = TheWorkers().join != nullptr && TheWorkers().communicator == nullptr;
  }
  int finalized = 0;
  mpi.Finalized(&finalized);
  if (finalized != 0) return;
  // `MPI_Finalize` would wait for processes that have not joined, and those wait for this one.
  if (status == 0 && joins) status = 1;
  if (status != 0) {
    std::fflush(nullptr);
    mpi.Abort(mpi.world, status);
  }
  mpi.Finalize();
}

}  // namespace

absl::Status OpenWorkers(const std::vector<core::MpiLibrary::Candidate>& libraries, uintptr_t communicator,
                         const std::string& name, Rank* rank) {
  core::MpiLibrary mpi;
  std::unique_ptr<core::MpiJoin> join;
  {
    const absl::MutexLock lock(&TheWorkers().mutex);
    mpi = TheWorkers().library;
    join = std::move(TheWorkers().join);
  }
  absl::Status status;
  if (join == nullptr) {
    // Without the lock, because MPI waits here for all processes.
    bool initialized_here = false;
    status = core::MpiLibrary::LoadFirst(libraries, &mpi);
    if (status.ok()) status = mpi.Initialize(&initialized_here);
    if (initialized_here) {
      opener = getpid();
      const absl::MutexLock lock(&TheWorkers().mutex);
      TheWorkers().library = mpi;
      on_exit(EndMpi, nullptr);
    }
  }
  const core::MpiLibrary::Handle original = communicator == 0 ? mpi.world : communicator;
  if (join == nullptr) {
    if (status.ok()) status = core::MpiJoin::Begin(mpi, original, name, &join);
  } else if (join->original() != original) {
    status = absl::FailedPreconditionError("this process has begun to join the processes of another communicator");
  }
  if (join != nullptr) *rank = {mpi.path, join->rank(), join->size()};
  const absl::MutexLock lock(&TheWorkers().mutex);
  TheWorkers().library = mpi;
  TheWorkers().join = std::move(join);
  return status;
}

absl::Status JoinWorkers(std::chrono::nanoseconds wait, std::chrono::nanoseconds limit, std::vector<int>* missing) {
  const absl::MutexLock lock(&TheWorkers().mutex);
  core::MpiJoin& join = *TheWorkers().join;
  const auto end = std::chrono::steady_clock::now() + wait;
  absl::Status status;
  for (bool joined = false; !joined; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    status = join.Advance(&joined);
    if (!status.ok()) return status;
    if (joined) break;
    if (std::chrono::steady_clock::now() < end) continue;
    *missing = join.Missing();
    return status;
  }
  opener = getpid();
  const auto answer = [](const core::Key& question, std::size_t bytes) { return AllRuns().Answer(question, bytes); };
  auto& communicator = TheWorkers().communicator;
  communicator = core::MpiCommunicator::Make(join, answer, &status);
  if (status.ok()) status = LeaveWorkersAtFinalize(join.library());
  if (status.ok()) {
    TheWorkers().workers = std::make_shared<core::Workers>(core::Workers{join.Names(), limit, communicator});
  }
  return status;
}

std::shared_ptr<const core::Workers> CurrentWorkers() {
  const absl::MutexLock lock(&TheWorkers().mutex);
  return TheWorkers().workers;
}

std::shared_ptr<core::DistributedRun> NewDistributedRun(const core::Workers& workers, int64_t device,
                                                        core::Program program) {
  return AllRuns().Begin(workers, absl::StrCat("ipu:", device), std::move(program), core::main_thread_runs);
}

std::shared_ptr<core::DistributedRun> NewHostExchange(const core::Workers& workers, const std::string& sequence,
                                                      const std::string& words) {
  core::Program program = core::Program::OfExchange(words, static_cast<int64_t>(core::ChunkBytes()));
  return AllRuns().Begin(workers, absl::StrCat(core::Runs::kMainThread, sequence), std::move(program), false);
}

}  // namespace tensorflow_ipu
