#include "tensorflow_ipu/kernels/core/answers.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>

#include "tensorflow_ipu/kernels/core/executor.h"

namespace tensorflow_ipu::core {

namespace {

// Programs that all together run for less than that are not worth another thread, which has to wake up, to fetch what
// they work on into its cache, and to contend for locks.
constexpr int64_t kWorthAThread = 60000;  // Nanoseconds.

// Threads that together did a collective's work are done with it within that time.
constexpr std::chrono::microseconds kTillOthersAreDone{10};

thread_local bool answering = false;

// Whether this thread runs what waited, and so comes back as soon as that waits again. The thread on which a program
// begins does not: TensorFlow's kernel holds it until the program ends.
thread_local bool resuming = false;

void Call(const Deliver& deliver, const Outcome& outcome, Pace* pace) {
  const auto start = std::chrono::steady_clock::now();
  deliver(outcome);
  if (pace != nullptr) pace->Note((std::chrono::steady_clock::now() - start) / std::chrono::nanoseconds(1));
}

void CallAll(std::vector<Deliver> delivers, Pace* pace) {
  answering = true;
  for (Deliver& each : delivers) {
    const Deliver deliver = std::move(each);
    if (deliver != nullptr) Call(deliver, Outcome::Ok(), pace);
  }
  answering = false;
}

bool WorthAThread(const std::vector<Deliver>& delivers, const Pace& pace) {
  return pace.nanoseconds() > kWorthAThread / static_cast<int64_t>(delivers.size() + 1);
}

// Answers that threads share. Not a thread for each: with more programs than cores they would only take turns, at the
// price of a wake-up each, and in turns of which one core may get more than another. So there are as many threads as
// cores, this one among them if it comes back; each wakes the next one before it starts, and goes on to another answer
// when its program waits again. No program blocks (see rendezvous.h), so none that is still to be resumed waits for
// longer than the cores are busy.
class Answers : public std::enable_shared_from_this<Answers> {
 public:
  // For so many threads besides this one.
  Answers(std::vector<Deliver> delivers, Outcome outcome, std::shared_ptr<Pace> pace, int64_t others)
      : delivers_(std::move(delivers)), outcome_(std::move(outcome)), pace_(std::move(pace)), to_wake_(others) {
    delivers_.erase(std::remove(delivers_.begin(), delivers_.end(), nullptr), delivers_.end());
  }

  // Has others answer, and this thread too when its task is done.
  static void Share(std::vector<Deliver> delivers, const Outcome& outcome, std::shared_ptr<Pace> pace) {
    const int64_t others = std::max<int64_t>(1, Cores() - (resuming ? 1 : 0));
    const auto self = std::make_shared<Answers>(std::move(delivers), outcome, std::move(pace), others);
    if (self->delivers_.empty()) return;
    if (resuming) Executor::RunAfterThis([self](const Outcome&) { self->Work(self->outcome_); });
    self->WakeOne();
  }

  // Gives this answer, with others who give it.
  void Work(const Outcome& outcome) {
    resuming = true;
    bool woke = false;
    for (std::size_t at = next_.fetch_add(1); at < delivers_.size(); at = next_.fetch_add(1)) {
      if (!woke && at + 1 < delivers_.size()) WakeOne();
      woke = true;
      const Deliver deliver = std::move(delivers_[at]);
      Call(deliver, outcome, pace_.get());
    }
    resuming = false;
    if (pace_ != nullptr) Executor::LingerAfterTask(pace_->linger());
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
  const std::shared_ptr<Pace> pace_;
  std::atomic<std::size_t> next_{0};
  std::atomic<int64_t> to_wake_;  // Threads.
};

}  // namespace

void AnswerLater(std::vector<Deliver> delivers, const Outcome& outcome) {
  Answers::Share(std::move(delivers), outcome, /*pace=*/nullptr);
}

// This thread has a program of its own to go on with, and where cores are idle, one thread would run one after the
// other what can run at once. But in a program of small steps it has run all of it before another thread has woken up.
// One answer inside of another goes to another thread, for the sake of the stack.
void Answer(std::vector<Deliver> delivers, const std::shared_ptr<Pace>& pace) {
  if (!answering && !WorthAThread(delivers, *pace)) return CallAll(std::move(delivers), pace.get());
  Answers::Share(std::move(delivers), Outcome::Ok(), pace);
}

void AnswerFromTask(std::vector<Deliver> delivers, const std::shared_ptr<Pace>& pace) {
  if (!WorthAThread(delivers, *pace)) return CallAll(std::move(delivers), pace.get());
  Executor::Global().AwaitLingerer(kTillOthersAreDone);
  std::make_shared<Answers>(std::move(delivers), Outcome::Ok(), pace, Cores() - 1)->Work(Outcome::Ok());
}

int64_t Cores() {
  static const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  return cores;
}

}  // namespace tensorflow_ipu::core
