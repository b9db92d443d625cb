// What this process does together with other workers: runs of programs, and exchanges of tensors of the host.
#ifndef TENSORFLOW_IPU_KERNELS_COLLECTIVES_DISTRIBUTED_RUNS_H_
#define TENSORFLOW_IPU_KERNELS_COLLECTIVES_DISTRIBUTED_RUNS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "tensorflow_ipu/kernels/core/distributed_run.h"

namespace tensorflow_ipu {

// Begins the next run of a device on all workers, which number them alike.
std::shared_ptr<core::DistributedRun> NewDistributedRun(const core::Workers& workers, int64_t device,
                                                        core::Program program);

// Begins the next exchange of a sequence, which workers number alike. The empty name is the sequence of Python's main
// thread: a worker that waits in a run meanwhile learns that this one is in an exchange.
class HostExchange {
 public:
  HostExchange(const core::Workers& workers, const std::string& sequence, const std::string& words);
  ~HostExchange();

  HostExchange(const HostExchange&) = delete;
  HostExchange& operator=(const HostExchange&) = delete;

  core::DistributedRun& run() const { return *run_; }

 private:
  std::shared_ptr<core::DistributedRun> run_;
  std::shared_ptr<core::Network::Calls> announced_;
};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_COLLECTIVES_DISTRIBUTED_RUNS_H_
