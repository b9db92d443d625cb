#include "tensorflow_ipu/kernels/core/completions.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>

#include "tensorflow_ipu/kernels/core/threads.h"
#include "tensorflow_ipu/kernels/core/tuning.h"

namespace tensorflow_ipu::core {

namespace {

thread_local bool answering = false;

// A thread that resumes programs is free at their next wait. The thread on which a program begins is not, since
// TensorFlow's kernel holds it until the program ends.
thread_local bool resuming = false;

using Moment = std::chrono::steady_clock::time_point;

// Without a `run_time`, the clock is not read.
Moment Call(const Deliver& deliver, const Outcome& outcome, RunningMedian* run_time, Moment start) {
  deliver(outcome);
  if (run_time == nullptr) return start;
  const Moment end = std::chrono::steady_clock::now();
  run_time->Note((end - start) / std::chrono::nanoseconds(1));
  return end;
}

void CallAll(std::vector<Deliver> delivers, RunningMedian* run_time) {
  answering = true;
  Moment now = std::chrono::steady_clock::now();
  for (Deliver& each : delivers) {
    const Deliver deliver = std::move(each);
    if (deliver != nullptr) now = Call(deliver, Outcome::Ok(), run_time, now);
  }
  answering = false;
}

bool WorthAThread(const std::vector<Deliver>& delivers, const RunningMedian& run_time) {
  return run_time.nanoseconds() > kWorthAThread.count() / static_cast<int64_t>(delivers.size() + 1);
}

// A shared list of programs to resume. Up to one thread per core takes from it, and each wakes the next one before it
// starts. No program blocks, so none stays in the list for longer than the cores are busy.
class Answers : public std::enable_shared_from_this<Answers> {
 public:
  Answers(std::vector<Deliver> delivers, Outcome outcome, std::shared_ptr<RunningMedian> run_time, int64_t others)
      : delivers_(std::move(delivers)), outcome_(std::move(outcome)), run_time_(std::move(run_time)), to_wake_(others) {
    delivers_.erase(std::remove(delivers_.begin(), delivers_.end(), nullptr), delivers_.end());
  }

  static void Share(std::vector<Deliver> delivers, const Outcome& outcome, std::shared_ptr<RunningMedian> run_time) {
    const int64_t others = std::max<int64_t>(1, Cores() - (resuming ? 1 : 0));
    const auto self = std::make_shared<Answers>(std::move(delivers), outcome, std::move(run_time), others);
    if (self->delivers_.empty()) return;
    if (resuming) Executor::RunAfterThis([self](const Outcome&) { self->Work(self->outcome_); });
    self->WakeOne();
  }

  void Work(const Outcome& outcome) {
    resuming = true;
    bool woke = false;
    for (std::size_t at = next_.fetch_add(1); at < delivers_.size(); at = next_.fetch_add(1)) {
      if (!woke && at + 1 < delivers_.size()) WakeOne();
      woke = true;
      const Deliver deliver = std::move(delivers_[at]);
      Call(deliver, outcome, run_time_.get(), std::chrono::steady_clock::now());
    }
    resuming = false;
    if (run_time_ != nullptr) Executor::SpinAfterTask(TaskSpin(*run_time_));
  }

 private:
  void WakeOne() {
    if (to_wake_.fetch_sub(1) > 0) {
      Executor::Global().Run(
          [self = shared_from_this()](const Outcome& started) { self->Work(started.ok() ? self->outcome_ : started); });
    }
  }

  std::vector<Deliver> delivers_;
  const Outcome outcome_;
  const std::shared_ptr<RunningMedian> run_time_;
  std::atomic<std::size_t> next_{0};
  std::atomic<int64_t> to_wake_;
};

}  // namespace

void AnswerLater(std::vector<Deliver> delivers, const Outcome& outcome) {
  Answers::Share(std::move(delivers), outcome, /*run_time=*/nullptr);
}

// In a program of small steps this thread has run all programs before another one has woken up. A nested call goes to
// another thread, so that the stack does not grow.
void Answer(std::vector<Deliver> delivers, const std::shared_ptr<RunningMedian>& run_time) {
  if (!answering && !WorthAThread(delivers, *run_time)) return CallAll(std::move(delivers), run_time.get());
  Answers::Share(std::move(delivers), Outcome::Ok(), run_time);
}

void AnswerFromTask(std::vector<Deliver> delivers, const std::shared_ptr<RunningMedian>& run_time) {
  if (!WorthAThread(delivers, *run_time)) return CallAll(std::move(delivers), run_time.get());
  Executor::Global().AwaitSpinningThread(kOthersAreDone);
  std::make_shared<Answers>(std::move(delivers), Outcome::Ok(), run_time, Cores() - 1)->Work(Outcome::Ok());
}

std::chrono::nanoseconds TaskSpin(const RunningMedian& run_time) {
  return std::min(std::chrono::nanoseconds(run_time.nanoseconds()), kLongestTaskSpin);
}

int64_t Cores() {
  static const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  return cores;
}

}  // namespace tensorflow_ipu::core
