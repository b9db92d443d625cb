// The workers that run programs together with this process.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow_ipu/kernels/collectives/communicator.h"
#include "tensorflow_ipu/kernels/collectives/distributed_run.h"
#include "tensorflow_ipu/kernels/collectives/mpi_library.h"

namespace tensorflow_ipu {

// This process's rank in an MPI communicator.
struct Rank {
  std::string library;
  int rank = 0;
  int size = 1;
};

// Begins to join the processes of a communicator, or of all processes that MPI has started if it is 0. Uses the first
// of these libraries that is available. A second call only sets `rank`.
//
// If this function initializes MPI, it also ends MPI at the exit of the process. If the exit status is not 0, MPI
// aborts all workers at once. Otherwise `MPI_Finalize` waits until all workers have called it.
absl::Status OpenWorkers(const std::vector<core::MpiLibrary::Candidate>& libraries, uintptr_t communicator,
                         const std::string& name, Rank* rank);

// Waits up to `wait` for the other processes. Afterwards they have joined, or `missing` contains the missing ranks; see
// `MpiJoin::Missing`. `limit` is the limit of later waits.
absl::Status JoinWorkers(std::chrono::nanoseconds wait, std::chrono::nanoseconds limit, std::vector<int>* missing);

// Returns null if this process is the only one, as it is before `JoinWorkers`.
std::shared_ptr<const core::Workers> CurrentWorkers();

// Begins the device's next run. All workers number the runs in the same way.
std::shared_ptr<core::DistributedRun> NewDistributedRun(const core::Workers& workers, int64_t device,
                                                        core::Program program);

// Begins the next host exchange (see `IpuHostExchange`) of a sequence. All workers number the exchanges in the same
// way. The empty name is the sequence of Python's main thread.
std::shared_ptr<core::DistributedRun> NewHostExchange(const core::Workers& workers, const std::string& sequence,
                                                      const std::string& words);

}  // namespace tensorflow_ipu
