// Gives programs that waited for each other their answers, and with them threads to go on with.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_ANSWERS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_ANSWERS_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "tensorflow_ipu/kernels/core/outcome.h"

namespace tensorflow_ipu::core {

// Gets how a wait ended. What it calls may be the rest of a whole program, up to where that waits again.
using Deliver = std::function<void(Outcome)>;

// How long programs run on from one place before they wait again, judged by how long they did before.
//
// Thread-safe.
class Pace {
 public:
  // Very long at first.
  int64_t nanoseconds() const { return nanoseconds_.load(std::memory_order_relaxed); }

  // How long a thread that has run its programs should stay awake, since it is wanted again when those of the other
  // threads wait too. The kernel often has a thread that it wakes share a core with another, while the next is idle.
  std::chrono::nanoseconds linger() const { return std::chrono::nanoseconds(std::min(nanoseconds(), kLongestLinger)); }

  // Goes a step towards each time, however far it is: so it comes to where half of them are longer. Single times say
  // little. A thread that lost its core for a while measures a long one; and a program that is answered before its
  // thread has left it goes on there, and its answer takes no time.
  void Note(int64_t nanoseconds) {
    const int64_t before = this->nanoseconds();
    const int64_t step = before / 8 + 100;
    const int64_t after = before == kUnknown ? nanoseconds : before + std::clamp(nanoseconds - before, -step, step);
    nanoseconds_.store(after, std::memory_order_relaxed);
  }

 private:
  static constexpr int64_t kLongestLinger = 500000;
  static constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

  std::atomic<int64_t> nanoseconds_{kUnknown};
};

// Calls those of `delivers` that are not null: on other threads, as many as there are cores, before or after this
// returns. Where a lock is held, this is the one to use.
void AnswerLater(std::vector<Deliver> delivers, const Outcome& outcome);

// The same for programs that stand at one place, whose pace is given; on this thread, before this returns, if that is
// quicker.
void Answer(std::vector<Deliver> delivers, const std::shared_ptr<Pace>& pace);

// The same as the last thing that a task of the executor does.
void AnswerFromTask(std::vector<Deliver> delivers, const std::shared_ptr<Pace>& pace);

// Threads that are worth using at once.
int64_t Cores();

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_ANSWERS_H_
