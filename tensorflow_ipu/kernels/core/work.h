#ifndef TENSORFLOW_IPU_KERNELS_CORE_WORK_H_
#define TENSORFLOW_IPU_KERNELS_CORE_WORK_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tensorflow_ipu/kernels/core/answers.h"
#include "tensorflow_ipu/kernels/core/exchange.h"
#include "tensorflow_ipu/kernels/core/running_median.h"

namespace tensorflow_ipu::core {

// The work of a collective all of whose replicas are of this process.
class Work {
 public:
  // By rank; all contributions match.
  Work(const Collective& collective, std::vector<Contribution> contributions, std::vector<Deliver> delivers,
       std::shared_ptr<RunningMedian> run_time);

  // Returns whether the collective is done; if not, other threads do it and call the caller's callback too. The last to
  // arrive does the work, while its data is in its cache; idle threads help with large data.
  static bool Perform(const std::shared_ptr<Work>& work, int64_t own_rank);

 private:
  Exchange exchange_;
  std::vector<Deliver> delivers_;  // Of the thread that does the last piece.
  const std::shared_ptr<RunningMedian> run_time_;
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_WORK_H_
