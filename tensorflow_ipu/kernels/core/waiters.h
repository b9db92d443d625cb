// Programs that wait for an element of an infeed.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_WAITERS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_WAITERS_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "tensorflow_ipu/kernels/core/deadlines.h"
#include "tensorflow_ipu/kernels/core/executor.h"
#include "tensorflow_ipu/kernels/core/metrics.h"
#include "tensorflow_ipu/kernels/core/outcome.h"

namespace tensorflow_ipu::core {

// A line of waiters a lane. Each gets an element, or why there is none, on a thread of the executor, since what it does
// then may be the rest of a whole program.
//
// Not thread-safe.
template <typename Element>
class Waiters {
 public:
  // Gets the element, or why there is none (then the element is empty).
  using Deliver = std::function<void(Outcome, Element)>;

  void SetLanes(int64_t lanes) { lines_.resize(lanes); }

  bool Any(int64_t lane) const { return !lines_[lane].empty(); }

  // Of all lanes.
  int64_t count() const {
    int64_t count = 0;
    for (const auto& line : lines_) count += static_cast<int64_t>(line.size());
    return count;
  }

  // Waits that are over, and how long they were.
  int64_t waits() const { return waits_; }
  std::chrono::nanoseconds waited() const { return waited_; }

  // Appends a waiter, who has waited for so long already, to a lane's line. With a limit above 0, `late(number)` is
  // called when it is over.
  template <typename Late>
  void Add(int64_t lane, Deliver deliver, std::chrono::nanoseconds already, std::chrono::nanoseconds limit, Late late) {
    Waiter waiter{next_number_++, std::move(deliver), Deadlines::Clock::now() - already, std::nullopt};
    if (limit.count() > 0) {
      waiter.deadline = Deadlines::Global().Add(waiter.since + limit,
                                                [late = std::move(late), number = waiter.number] { late(number); });
    }
    lines_[lane].push_back(std::move(waiter));
  }

  // Gives the first of the line its element. Returns how long it has waited.
  std::chrono::nanoseconds Serve(int64_t lane, Element element) {
    Waiter waiter = std::move(lines_[lane].front());
    lines_[lane].pop_front();
    return HandOver(std::move(waiter), Outcome::Ok(), std::move(element));
  }

  // Fails all of the line.
  void Fail(int64_t lane, const Outcome& why) {
    for (Waiter& waiter : lines_[lane]) HandOver(std::move(waiter), why, Element());
    lines_[lane].clear();
  }

  // Fails all of all lines.
  void FailAll(const Outcome& why) {
    for (std::size_t lane = 0; lane < lines_.size(); ++lane) Fail(static_cast<int64_t>(lane), why);
  }

  // Fails the waiter of this number, whose limit is over, if it still waits.
  void GiveUp(int64_t lane, int64_t number, const Outcome& why) {
    if (lane >= static_cast<int64_t>(lines_.size())) return;
    auto& line = lines_[lane];
    for (auto waiter = line.begin(); waiter != line.end(); ++waiter) {
      if (waiter->number != number) continue;
      waiter->deadline.reset();
      HandOver(std::move(*waiter), why, Element());
      line.erase(waiter);
      return;
    }
  }

 private:
  struct Waiter {
    int64_t number;
    Deliver deliver;
    Deadlines::Clock::time_point since;
    std::optional<Deadlines::Ticket> deadline;
  };

  // Returns how long it has waited.
  std::chrono::nanoseconds HandOver(Waiter waiter, Outcome why, Element element) {
    const auto now = Deadlines::Clock::now();
    const std::chrono::nanoseconds waited = now - waiter.since;
    ++waits_;
    waited_ += waited;
    Metrics::Global().infeed_waits.Add(now, waited);
    if (waiter.deadline.has_value()) Deadlines::Global().Remove(*waiter.deadline);
    Executor::Global().Run([deliver = std::move(waiter.deliver), why = std::move(why),
                            element = std::move(element)](const Outcome& started) mutable {
      deliver(started.ok() ? std::move(why) : started, std::move(element));
    });
    return waited;
  }

  std::vector<std::deque<Waiter>> lines_;  // By lane.
  int64_t next_number_ = 0;
  int64_t waits_ = 0;
  std::chrono::nanoseconds waited_{0};
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_WAITERS_H_
