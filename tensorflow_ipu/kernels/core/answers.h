// Resumes programs that waited for each other, on this thread or on several.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_ANSWERS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_ANSWERS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tensorflow_ipu/kernels/core/outcome.h"
#include "tensorflow_ipu/kernels/core/running_median.h"

namespace tensorflow_ipu::core {

// Gets the status of a wait. It may run the rest of a program, up to its next wait.
using Deliver = std::function<void(Outcome)>;

// Calls the callbacks that are not null on other threads. Use this one where a lock is held.
void AnswerLater(std::vector<Deliver> delivers, const Outcome& outcome);

// The same for programs that waited at one call site, on this thread if that is quicker. `run_time` is how long they
// run until their next wait.
void Answer(std::vector<Deliver> delivers, const std::shared_ptr<RunningMedian>& run_time);

// The same as the last step of a task of the executor.
void AnswerFromTask(std::vector<Deliver> delivers, const std::shared_ptr<RunningMedian>& run_time);

// How long a thread that resumed programs spins for its next task: a wake may put it on a core that another thread
// uses.
std::chrono::nanoseconds TaskSpin(const RunningMedian& run_time);

int64_t Cores();

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_ANSWERS_H_
