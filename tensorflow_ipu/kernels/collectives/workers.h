// The workers that run programs together with this process, and what it does together with them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tensorflow_ipu/kernels/core/distributed_run.h"
#include "tensorflow_ipu/kernels/core/network.h"

namespace tensorflow_ipu {

// Null: this process is alone, as at first.
void SetWorkers(std::shared_ptr<const core::Workers> workers);

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
  std::shared_ptr<core::Network::Calls> announced_;
};

}  // namespace tensorflow_ipu
