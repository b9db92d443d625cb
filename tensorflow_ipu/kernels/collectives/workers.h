// The workers that run programs together with this process, and what it does together with them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/communicator.h"
#include "tensorflow_ipu/kernels/core/distributed_run.h"
#include "tensorflow_ipu/kernels/core/mpi_library.h"
#include "tensorflow_ipu/kernels/core/status.h"

namespace tensorflow_ipu {

// Begins to join the processes of a communicator of the first of these libraries that can be used, or of all that MPI
// has started if it is 0; a second call does nothing. Where this initializes MPI, it ends MPI at the exit of the
// process: with status 0 when all workers have come to their ends, and at once, with all workers, with another status.
core::Status OpenWorkers(const std::vector<core::MpiLibrary::Candidate>& libraries, uintptr_t communicator,
                         const std::string& name);

// This process among those of the communicator.
struct Rank {
  std::string library;
  int rank = 0;
  int size = 1;
  bool initialized_here = false;
};
Rank OpenedRank();

// Waits for the others for so long. `joined` says whether all have come, and `missing` has those that have not; see
// `MpiJoin::Missing`. `limit` is for later waits.
core::Status JoinWorkers(std::chrono::nanoseconds wait, std::chrono::nanoseconds limit, bool* joined,
                         std::vector<int>* missing);

// Ends this process's part, before somebody else ends MPI.
void LeaveWorkers();

// Null: this process is alone, as at first.
std::shared_ptr<const core::Workers> CurrentWorkers();

// Begins the device's next run, which all workers number alike.
std::shared_ptr<core::DistributedRun> NewDistributedRun(const core::Workers& workers, int64_t device,
                                                        core::Program program);

// The next exchange of a sequence, numbered alike on all workers. The empty name is the sequence of Python's main
// thread: other workers that wait in a run learn of its exchanges.
class HostExchange {
 public:
  HostExchange(const core::Workers& workers, const std::string& sequence, const std::string& words);
  ~HostExchange();

  HostExchange(const HostExchange&) = delete;
  HostExchange& operator=(const HostExchange&) = delete;

  core::DistributedRun& run() const { return *run_; }

 private:
  std::shared_ptr<core::DistributedRun> run_;
  std::shared_ptr<core::Communicator::Calls> announced_;
};

}  // namespace tensorflow_ipu
