#include "tensorflow_ipu/kernels/core/work.h"

#include <algorithm>
#include <utility>

#include "tensorflow_ipu/kernels/core/executor.h"
#include "tensorflow_ipu/kernels/core/tuning.h"

namespace tensorflow_ipu::core {

Work::Work(const Collective& collective, std::vector<Contribution> contributions, std::vector<Deliver> delivers,
           std::shared_ptr<RunningMedian> run_time)
    : exchange_(collective, std::move(contributions)), delivers_(std::move(delivers)), run_time_(std::move(run_time)) {}

bool Work::Perform(const std::shared_ptr<Work>& work, int64_t own_rank) {
  if (work->exchange_.bytes() >= kSharedBytes) {
    const int64_t helpers = std::min(Cores(), work->exchange_.pieces()) - 1;
    for (int64_t i = 0; i < helpers; ++i) {
      Executor::Global().Run([work](const Outcome& started) {
        if (!started.ok()) return;  // The others do its pieces.
        Executor::SpinAfterTask(TaskSpin(*work->run_time_));
        if (work->exchange_.DoSome()) AnswerFromTask(std::move(work->delivers_), work->run_time_);
      });
    }
  }
  if (!work->exchange_.DoSome()) return false;
  work->delivers_[own_rank] = nullptr;
  Answer(std::move(work->delivers_), work->run_time_);
  return true;
}

}  // namespace tensorflow_ipu::core
