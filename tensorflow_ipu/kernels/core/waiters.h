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

// Programs that wait for an element, in a line for each replica. They get it on a thread of the executor, since a
// callback may run the rest of a program. Not thread-safe.
template <typename Element>
class Waiters {
 public:
  // On an error the element is empty.
  using Deliver = std::function<void(Outcome, Element)>;

  void SetLanes(int64_t lanes) { lines_.resize(lanes); }

  bool Any(int64_t lane) const { return !lines_[lane].empty(); }

  // Of all replicas.
  int64_t count() const {
    int64_t count = 0;
    for (const auto& line : lines_) count += static_cast<int64_t>(line.size());
    return count;
  }

  // Of finished waits.
  int64_t waits() const { return waits_; }
  std::chrono::nanoseconds waited() const { return waited_; }

  // Appends a program that has waited for `already`. `late(number)` is called after a limit above 0.
  template <typename Late>
  void Add(int64_t lane, Deliver deliver, std::chrono::nanoseconds already, std::chrono::nanoseconds limit, Late late) {
    Waiter waiter{next_number_++, std::move(deliver), Deadlines::Clock::now() - already, std::nullopt};
    if (limit.count() > 0) {
      waiter.deadline = Deadlines::Global().Add(waiter.since + limit,
                                                [late = std::move(late), number = waiter.number] { late(number); });
    }
    lines_[lane].push_back(std::move(waiter));
  }

  // Returns how long it has waited.
  std::chrono::nanoseconds Serve(int64_t lane, Element element) {
    Waiter waiter = std::move(lines_[lane].front());
    lines_[lane].pop_front();
    return HandOver(std::move(waiter), Outcome::Ok(), std::move(element));
  }

  void Fail(int64_t lane, const Outcome& why) {
    for (Waiter& waiter : lines_[lane]) HandOver(std::move(waiter), why, Element());
    lines_[lane].clear();
  }

  void FailAll(const Outcome& why) {
    for (std::size_t lane = 0; lane < lines_.size(); ++lane) Fail(static_cast<int64_t>(lane), why);
  }

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

  std::vector<std::deque<Waiter>> lines_;  // By replica.
  int64_t next_number_ = 0;
  int64_t waits_ = 0;
  std::chrono::nanoseconds waited_{0};
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_WAITERS_H_
