// The runs that this process has had together with other workers.
#ifndef TENSORFLOW_IPU_KERNELS_COLLECTIVES_JOINT_RUNS_H_
#define TENSORFLOW_IPU_KERNELS_COLLECTIVES_JOINT_RUNS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/joint_run.h"

namespace tensorflow_ipu {

// Begins the next run of a device on all workers, which number them alike.
std::shared_ptr<core::JointRun> NewJointRun(const core::Workers& workers, int64_t device, core::Program program);

// The names of the runs that this process has not begun and another worker may be in: of each device the next one.
std::vector<std::string> NextJointRuns();

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_COLLECTIVES_JOINT_RUNS_H_
