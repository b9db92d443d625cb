#include "tensorflow_ipu/kernels/core/deadlines.h"

#include "tensorflow_ipu/kernels/core/threads.h"

namespace tensorflow_ipu::core {

Deadlines& Deadlines::Global() {
  static Deadlines* const deadlines = new Deadlines();
  return *deadlines;
}

Outcome Deadlines::Prepare() {
  const Lock lock(mutex_);
  return Start();
}

Outcome Deadlines::Start() {
  if (started_) return Outcome::Ok();
  Outcome started = StartThread("ipu-deadlines", [this] { Work(); });
  started_ = started.ok();
  return started;
}

Deadlines::Ticket Deadlines::Add(Clock::time_point when, std::function<void()> due) {
  const Lock lock(mutex_);
  const Ticket ticket(when, next_++);
  calls_.emplace(ticket, std::move(due));
  static_cast<void>(Start());  // The next deadline tries again.
  changed_.NotifyOne();
  return ticket;
}

void Deadlines::Remove(const Ticket& ticket) {
  std::map<Ticket, std::function<void()>>::node_type
      removed;  // Destroyed after the lock: its captures may use the deadlines.
  const Lock lock(mutex_);
  removed = calls_.extract(ticket);
}

void Deadlines::Work() {
  Lock lock(mutex_);
  while (true) {
    if (calls_.empty()) {
      changed_.Wait(lock);
      continue;
    }
    const auto first = calls_.begin();
    const Clock::time_point when = first->first.first;
    if (Clock::now() < when) {
      changed_.WaitUntil(lock, when);
      continue;
    }
    std::function<void()> due = std::move(first->second);
    calls_.erase(first);
    lock.Unlock();
    due();
    due = nullptr;
    lock.Relock();
  }
}

}  // namespace tensorflow_ipu::core
