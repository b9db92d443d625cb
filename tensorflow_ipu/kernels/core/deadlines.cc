#include "tensorflow_ipu/kernels/core/deadlines.h"

#include "tensorflow_ipu/kernels/core/threads.h"

namespace tensorflow_ipu::core {

Deadlines& Deadlines::Global() {
  static Deadlines* const deadlines = new Deadlines();
  return *deadlines;
}

Outcome Deadlines::Prepare() {
  std::lock_guard<std::mutex> lock(mutex_);
  return StartLocked();
}

Outcome Deadlines::StartLocked() {
  if (started_) return Outcome::Ok();
  Outcome started = StartThread("ipu-deadlines", [this] { Work(); });
  started_ = started.ok();
  return started;
}

Deadlines::Ticket Deadlines::Add(Clock::time_point when, std::function<void()> due) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Ticket ticket(when, next_++);
  calls_.emplace(ticket, std::move(due));
  static_cast<void>(StartLocked());  // The next deadline tries again.
  changed_.notify_one();
  return ticket;
}

void Deadlines::Remove(const Ticket& ticket) {
  decltype(calls_)::node_type removed;  // Goes after the lock: what the call holds may use the deadlines when it goes.
  std::lock_guard<std::mutex> lock(mutex_);
  removed = calls_.extract(ticket);
}

void Deadlines::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (calls_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto first = calls_.begin();
    const Clock::time_point when = first->first.first;
    if (Clock::now() < when) {
      changed_.wait_until(lock, when);
      continue;
    }
    std::function<void()> due = std::move(first->second);
    calls_.erase(first);
    lock.unlock();
    due();
    due = nullptr;
    lock.lock();
  }
}

}  // namespace tensorflow_ipu::core
