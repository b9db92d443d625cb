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

// This process among those of an MPI communicator.
struct Rank {
  std::string library;
  int rank = 0;
  int size = 1;
};

// Begins to join the processes of a communicator of the first of these libraries that can be used, or of all that MPI
// has started if it is 0; a second call only fills `rank`. Where this initializes MPI, it ends MPI at the exit of the
// process: at once, with all workers, unless the status is 0. `MPI_Finalize` waits until all workers have come there.
absl::Status OpenWorkers(const std::vector<core::MpiLibrary::Candidate>& libraries, uintptr_t communicator,
                         const std::string& name, Rank* rank);

// Waits for the others for so long. Then they have joined, or `missing` has those that have not; see
// `MpiJoin::Missing`. `limit` is for later waits.
absl::Status JoinWorkers(std::chrono::nanoseconds wait, std::chrono::nanoseconds limit, std::vector<int>* missing);

// Null: this process is alone, as at first.
std::shared_ptr<const core::Workers> CurrentWorkers();

// Begins the device's next run, which all workers number alike.
std::shared_ptr<core::DistributedRun> NewDistributedRun(const core::Workers& workers, int64_t device,
                                                        core::Program program);

// Begins the next exchange of a sequence, numbered alike on all workers. The empty name is the sequence of Python's
// main thread.
std::shared_ptr<core::DistributedRun> NewHostExchange(const core::Workers& workers, const std::string& sequence,
                                                      const std::string& words);

}  // namespace tensorflow_ipu
