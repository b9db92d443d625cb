// Resumes programs that waited for each other: on this thread, or on several, by work sharing.
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

// Is called with how a wait ended. It may run the rest of a whole program, up to where that waits again.
using Deliver = std::function<void(Outcome)>;

// Calls those of `delivers` that are not null: on other threads, as many as there are cores, before or after this
// returns. Where a lock is held, this is the one to use.
void AnswerLater(std::vector<Deliver> delivers, const Outcome& outcome);

// The same for programs that waited at one call site; on this thread, before this returns, if that is quicker.
// `run_time` is how long programs run from that site to their next wait; what runs here is noted in it.
void Answer(std::vector<Deliver> delivers, const std::shared_ptr<RunningMedian>& run_time);

// The same as the last thing that a task of the executor does.
void AnswerFromTask(std::vector<Deliver> delivers, const std::shared_ptr<RunningMedian>& run_time);

// How long a thread that has run such programs should spin for its next task, since it is wanted again when those of
// the other threads wait too. The kernel often has a thread that it wakes share a core with another, while the next is
// idle.
std::chrono::nanoseconds TaskSpin(const RunningMedian& run_time);

// Threads that are worth using at once.
int64_t Cores();

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_ANSWERS_H_
