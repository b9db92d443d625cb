// The work of a collective all of whose replicas are of this process, from the last arrival to the answers.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_WORK_H_
#define TENSORFLOW_IPU_KERNELS_CORE_WORK_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tensorflow_ipu/kernels/core/answers.h"
#include "tensorflow_ipu/kernels/core/exchange.h"
#include "tensorflow_ipu/kernels/core/running_median.h"

namespace tensorflow_ipu::core {

// Performed once.
class Work {
 public:
  // Contributions and answers by rank; all contributions match.
  Work(const Collective& collective, std::vector<Contribution> contributions, std::vector<Deliver> delivers,
       std::shared_ptr<RunningMedian> run_time);

  // Performs the collective. Returns whether it is done; if not, other threads are at it, and answer the caller too.
  //
  // The last to arrive does the work, while the data that it has just written is in its cache. Where there is much,
  // idle threads help: all take the next piece until there is none, so nobody waits for a helper that wakes up late.
  static bool Perform(const std::shared_ptr<Work>& work, int64_t own_rank);

 private:
  Exchange exchange_;
  std::vector<Deliver> delivers_;  // Of the thread that does the last piece.
  const std::shared_ptr<RunningMedian> run_time_;
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_WORK_H_
