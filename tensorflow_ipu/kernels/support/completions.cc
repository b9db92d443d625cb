#include "tensorflow_ipu/kernels/support/completions.h"

#include <cstddef>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "tensorflow_ipu/kernels/support/threads.h"
#include "tensorflow_ipu/kernels/support/tuning.h"

namespace tensorflow_ipu::core {

namespace {

thread_local bool running_callbacks = false;

// True on a thread that resumes programs. Such a thread becomes free when the program waits again. The thread on which
// a program began does not, since TensorFlow's kernel occupies it until the program ends.
thread_local bool resuming = false;

using Moment = std::chrono::steady_clock::time_point;

// Calls a callback and records its time. Without a `run_time`, the clock is not read.
Moment Call(const Callback& callback, const absl::Status& status, RunningMedian* run_time, Moment start) {
  callback(status);
  if (run_time == nullptr) return start;
  const Moment end = std::chrono::steady_clock::now();
  run_time->Note((end - start) / std::chrono::nanoseconds(1));
  return end;
}

void CallAll(std::vector<Callback> callbacks, RunningMedian* run_time) {
  running_callbacks = true;
  Moment now = std::chrono::steady_clock::now();
  for (Callback& waiting : callbacks) {
    const Callback callback = std::move(waiting);
    if (callback != nullptr) now = Call(callback, absl::OkStatus(), run_time, now);
  }
  running_callbacks = false;
}

bool WorthAThread(const std::vector<Callback>& callbacks, const RunningMedian& run_time) {
  return run_time.nanoseconds() > kWorthAThread.count() / static_cast<int64_t>(callbacks.size() + 1);
}

// A shared list of programs to resume. Up to one thread per core takes programs from it, and each thread wakes the next
// one before it starts. No program blocks these threads, so a program stays in the list only while all cores are busy.
class SharedCallbacks : public std::enable_shared_from_this<SharedCallbacks> {
 public:
  SharedCallbacks(std::vector<Callback> callbacks, absl::Status status, std::shared_ptr<RunningMedian> run_time,
                  int64_t others)
      : callbacks_(std::move(callbacks)), status_(std::move(status)), run_time_(std::move(run_time)), to_wake_(others) {
    callbacks_.erase(std::remove(callbacks_.begin(), callbacks_.end(), nullptr), callbacks_.end());
  }

  static void Share(std::vector<Callback> callbacks, const absl::Status& status,
                    std::shared_ptr<RunningMedian> run_time) {
    const int64_t others = std::max<int64_t>(1, Cores() - (resuming ? 1 : 0));
    const auto self = std::make_shared<SharedCallbacks>(std::move(callbacks), status, std::move(run_time), others);
    if (self->callbacks_.empty()) return;
    if (resuming) Executor::RunAfterThis([self](const absl::Status&) { self->Work(self->status_); });
    self->WakeOne();
  }

  void Work(const absl::Status& status) {
    resuming = true;
    bool woke = false;
    for (std::size_t i = next_.fetch_add(1); i < callbacks_.size(); i = next_.fetch_add(1)) {
      if (!woke && i + 1 < callbacks_.size()) WakeOne();
      woke = true;
      const Callback callback = std::move(callbacks_[i]);
      Call(callback, status, run_time_.get(), std::chrono::steady_clock::now());
    }
    resuming = false;
    if (run_time_ != nullptr) Executor::SpinAfterTask(TaskSpin(*run_time_));
  }

 private:
  void WakeOne() {
    if (to_wake_.fetch_sub(1) > 0) {
      Executor::Global().Run([self = shared_from_this()](const absl::Status& started) {
        self->Work(started.ok() ? self->status_ : started);
      });
    }
  }

  std::vector<Callback> callbacks_;
  const absl::Status status_;
  const std::shared_ptr<RunningMedian> run_time_;
  std::atomic<std::size_t> next_{0};
  std::atomic<int64_t> to_wake_;
};

}  // namespace

void RunCallbacksLater(std::vector<Callback> callbacks, const absl::Status& status) {
  SharedCallbacks::Share(std::move(callbacks), status, /*run_time=*/nullptr);
}

// In a program of small steps, this thread finishes all programs before another one would wake up. A nested call uses
// another thread, so that the stack does not grow.
void RunCallbacks(std::vector<Callback> callbacks, const std::shared_ptr<RunningMedian>& run_time) {
  if (!running_callbacks && !WorthAThread(callbacks, *run_time)) return CallAll(std::move(callbacks), run_time.get());
  SharedCallbacks::Share(std::move(callbacks), absl::OkStatus(), run_time);
}

void RunCallbacksFromTask(std::vector<Callback> callbacks, const std::shared_ptr<RunningMedian>& run_time) {
  if (!WorthAThread(callbacks, *run_time)) return CallAll(std::move(callbacks), run_time.get());
  Executor::Global().AwaitSpinningThread(kAwaitSpinning);
  std::make_shared<SharedCallbacks>(std::move(callbacks), absl::OkStatus(), run_time, Cores() - 1)
      ->Work(absl::OkStatus());
}

std::chrono::nanoseconds TaskSpin(const RunningMedian& run_time) {
  return std::min(std::chrono::nanoseconds(run_time.nanoseconds()), kLongestTaskSpin);
}

int64_t Cores() {
  static const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  return cores;
}

}  // namespace tensorflow_ipu::core
