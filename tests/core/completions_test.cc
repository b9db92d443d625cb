// Tests that every callback is called once, and on the intended thread.
#include "tensorflow_ipu/kernels/support/completions.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tensorflow_ipu/kernels/support/threads.h"
#include "tensorflow_ipu/kernels/support/waiting.h"
#include "tests/core/threads.h"

namespace {

using check::Count;
using namespace tensorflow_ipu::core;

TEST(Completions, the_running_median_settles_at_the_median) {
  RunningMedian median;
  EXPECT_TRUE(median.nanoseconds() > 1000000000);
  median.Note(5000);
  EXPECT_EQ(median.nanoseconds(), 5000);
  for (const int64_t extreme : {int64_t{1} << 40, int64_t{0}}) {
    median.Note(extreme);
    EXPECT_TRUE(median.nanoseconds() > 4000 && median.nanoseconds() < 6000);
    for (int i = 0; i < 2; ++i) median.Note(5000);
    EXPECT_EQ(median.nanoseconds(), 5000);
  }
  for (const int64_t lasting : {1000000, 0, 70}) {
    for (int i = 0; i < 100; ++i) median.Note(lasting);
    EXPECT_EQ(median.nanoseconds(), lasting);
  }
}

// A regression: a program that was resumed before its thread had left it continued on that thread. Its callback took no
// time, and for ten steps all programs ran one after the other.
TEST(Completions, the_running_median_ignores_occasional_short_times) {
  RunningMedian median;
  for (int i = 0; i < 1000; ++i) {
    median.Note(i % 5 == 4 ? 100 : 170000);
    EXPECT_TRUE(median.nanoseconds() > 100000);
  }
}

constexpr int kPrograms = 8;

// Programs that count how often they were resumed, and how often on the thread that requested it.
struct Programs {
  std::vector<Callback> Callbacks() {
    std::vector<Callback> callbacks = {nullptr};
    for (int i = 0; i < kPrograms; ++i) {
      callbacks.push_back([this, i, requester = std::this_thread::get_id()](const absl::Status& status) {
        ++calls[i];
        on_this_thread += std::this_thread::get_id() == requester;
        last_code = status.code();
        done.Add();
      });
    }
    callbacks.push_back(nullptr);
    return callbacks;
  }

  void CheckOnce() {
    EXPECT_TRUE(done.Await(kPrograms));
    for (const std::atomic<int>& count : calls) EXPECT_EQ(count.load(), 1);
  }

  std::vector<std::atomic<int>> calls = std::vector<std::atomic<int>>(kPrograms);
  std::atomic<int> on_this_thread{0};
  std::atomic<absl::StatusCode> last_code{absl::StatusCode::kUnknown};
  Count done;
};

std::shared_ptr<RunningMedian> RunTimeOf(int64_t nanoseconds) {
  auto run_time = std::make_shared<RunningMedian>();
  run_time->Note(nanoseconds);
  return run_time;
}

TEST(Completions, callbacks_that_run_later_run_on_other_threads) {
  Programs programs;
  RunCallbacksLater(programs.Callbacks(), absl::OutOfRangeError("over"));
  programs.CheckOnce();
  EXPECT_EQ(programs.on_this_thread.load(), 0);
  EXPECT_EQ(programs.last_code.load(), absl::StatusCode::kOutOfRange);
  RunCallbacksLater({nullptr, nullptr}, absl::OkStatus());
}

TEST(Completions, programs_of_small_steps_continue_on_the_same_thread) {
  Programs programs;
  RunCallbacks(programs.Callbacks(), RunTimeOf(100));
  EXPECT_EQ(programs.on_this_thread.load(), kPrograms);
  programs.CheckOnce();
  EXPECT_EQ(programs.last_code.load(), absl::StatusCode::kOk);
}

TEST(Completions, programs_of_large_or_unknown_steps_continue_on_other_threads) {
  for (const auto& run_time : {RunTimeOf(1000000000), std::make_shared<RunningMedian>()}) {
    Programs programs;
    RunCallbacks(programs.Callbacks(), run_time);
    programs.CheckOnce();
    EXPECT_EQ(programs.on_this_thread.load(), 0);
  }
}

TEST(Completions, nested_callbacks_run_on_other_threads) {
  Programs programs;
  const auto run_time = RunTimeOf(100);
  RunCallbacks({[&](const absl::Status&) { RunCallbacks(programs.Callbacks(), run_time); }}, run_time);
  programs.CheckOnce();
  EXPECT_EQ(programs.on_this_thread.load(), 0);
  Programs next;
  RunCallbacks(next.Callbacks(), RunTimeOf(100));
  EXPECT_EQ(next.on_this_thread.load(), kPrograms);
}

TEST(Completions, a_task_runs_callbacks_and_shares_them_with_other_threads) {
  for (const int64_t nanoseconds : {100, 1000000000}) {
    Programs programs;
    Count done;
    Executor::Global().Run([&](const absl::Status&) {
      RunCallbacksFromTask(programs.Callbacks(), RunTimeOf(nanoseconds));
      EXPECT_TRUE(programs.on_this_thread.load() > 0);
      done.Add();
    });
    programs.CheckOnce();
    EXPECT_TRUE(done.Await());
  }
}

// A regression: the thread that resumed the other programs had another program to continue. Two more threads shared the
// second core while the first one was idle.
TEST(Completions, programs_that_resume_each_other_use_no_more_threads_than_there_are_cores) {
  constexpr int kSteps = 50;
  const int64_t limit = std::max<int64_t>(2, tensorflow_ipu::core::Cores());
  std::atomic<int64_t> at_once{0};
  const auto run_time = RunTimeOf(1000000000);
  Count done;
  // Each program runs and waits for the others. The last one to arrive resumes them, and continues.
  std::function<void(int, std::atomic<int>*)> run = [&](int step, std::atomic<int>* missing) {
    EXPECT_TRUE(++at_once <= limit);
    SpinUntil(std::chrono::microseconds(50), [] { return false; });
    --at_once;
    if (--*missing > 0) return;
    delete missing;
    done.Add();
    if (step == kSteps) return;
    std::atomic<int>* const next = new std::atomic<int>(kPrograms);
    RunCallbacks(std::vector<Callback>(kPrograms - 1, [&run, step, next](const absl::Status&) { run(step + 1, next); }),
                 run_time);
    run(step + 1, next);
  };
  Executor::Global().Run([&](const absl::Status&) {
    RunCallbacksFromTask({[&run](const absl::Status&) { run(1, new std::atomic<int>(1)); }}, run_time);
  });
  EXPECT_TRUE(done.Await(kSteps));
  EXPECT_TRUE(Executor::Global().AwaitIdle(check::kDeadline));
}

TEST(Completions, threads_spin_for_as_long_as_a_program_runs_up_to_a_limit) {
  EXPECT_EQ(TaskSpin(*RunTimeOf(7000)), std::chrono::microseconds(7));
  EXPECT_TRUE(TaskSpin(*RunTimeOf(1000000000)) < std::chrono::milliseconds(1));
}

TEST(Completions, the_run_time_of_programs_is_recorded) {
  const auto run_time = std::make_shared<RunningMedian>();
  Count done;
  RunCallbacks({[&](const absl::Status&) {
                 SpinUntil(std::chrono::milliseconds(2), [] { return false; });
                 done.Add();
               }},
               run_time);
  EXPECT_TRUE(done.Await());
  EXPECT_TRUE(SpinUntil(check::kDeadline, [&] { return run_time->nanoseconds() != RunningMedian().nanoseconds(); }));
  EXPECT_TRUE(run_time->nanoseconds() >= 2000000);
}

TEST(Completions, captures_of_a_callback_are_released_after_its_call) {
  for (const int64_t nanoseconds : {100, 1000000000}) {
    Count gone;
    std::vector<Callback> callbacks;
    callbacks.push_back([kept = check::Held(gone)](const absl::Status&) {});
    RunCallbacks(std::move(callbacks), RunTimeOf(nanoseconds));
    EXPECT_TRUE(gone.Await());
  }
}

}  // namespace
