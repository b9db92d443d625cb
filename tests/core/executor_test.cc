// Tests that no task of the executor waits for another, and that each runs once.
#include "tensorflow_ipu/kernels/support/threads.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/core/threads.h"

namespace {

using namespace tensorflow_ipu::core;

TEST(Executor, a_task_that_blocks_delays_no_other) {
  check::Count release;
  check::Count blocked_ends;
  check::Count other_ran;
  Executor::Global().Run([&](const absl::Status&) {
    EXPECT_TRUE(release.Await());
    blocked_ends.Add();
  });
  Executor::Global().Run([&](const absl::Status&) { other_ran.Add(); });
  EXPECT_TRUE(other_ran.Await());
  release.Add();
  EXPECT_TRUE(blocked_ends.Await());
}

TEST(Executor, every_task_runs_once_on_whatever_thread_it_was_submitted) {
  constexpr int kTasks = 200;
  std::vector<std::atomic<int>> runs(kTasks);
  check::Count done;
  const auto count = [&](int task) {
    ++runs[task];
    done.Add();
  };
  for (int task = 0; task < kTasks; ++task) {
    Executor::Global().Run([&, task](const absl::Status&) {
      Executor::Global().Run([&, task](const absl::Status&) { count(task); });
      count(task);
    });
  }
  EXPECT_TRUE(done.Await(2 * kTasks));
  EXPECT_TRUE(Executor::Global().AwaitIdle(check::kDeadline));
  for (const std::atomic<int>& task_runs : runs) EXPECT_EQ(task_runs.load(), 2);
}

TEST(Executor, many_tasks_that_wait_for_each_other_all_run) {
  constexpr int kTasks = 32;
  check::Count running;
  check::Count done;
  for (int task = 0; task < kTasks; ++task) {
    Executor::Global().Run([&](const absl::Status&) {
      running.Add();
      EXPECT_TRUE(running.Await(kTasks));
      done.Add();
    });
  }
  EXPECT_TRUE(done.Await(kTasks));
}

// Repeated, because a thread that has finished its task takes another one a little later.
TEST(Executor, an_idle_thread_gets_the_next_task) {
  std::set<std::thread::id> threads;
  EXPECT_TRUE(check::Becomes([&] {
    check::Count done;
    std::thread::id thread;
    Executor::Global().Run([&](const absl::Status&) {
      thread = std::this_thread::get_id();
      done.Add();
    });
    return done.Await() && !threads.insert(thread).second;
  }));
}

#if defined(__x86_64__)
// A regression: a program that continued after a wait had other results for subnormal values.
TEST(Executor, tasks_flush_subnormal_values_on_whatever_thread_they_were_submitted) {
  const unsigned before = __builtin_ia32_stmxcsr();
  for (const unsigned flush : {0x0000u, 0x8040u}) {
    __builtin_ia32_ldmxcsr((before & ~0x8040u) | flush);
    constexpr int kTasks = 8;
    check::Count running;
    check::Count done;
    for (int task = 0; task < kTasks; ++task) {
      Executor::Global().Run([&](const absl::Status&) {
        running.Add();
        EXPECT_TRUE(running.Await(kTasks));  // So new threads start for some of them.
        EXPECT_EQ(__builtin_ia32_stmxcsr() & 0x8040u, 0x8040u);
        done.Add();
      });
    }
    EXPECT_TRUE(done.Await(kTasks));
  }
  __builtin_ia32_ldmxcsr(before);
}
#endif

TEST(Executor, captures_of_a_task_are_released_after_its_run) {
  check::Count gone;
  Executor::Global().Run([held = check::Held(gone)](const absl::Status&) {});
  EXPECT_TRUE(gone.Await());
}

TEST(Executor, tasks_added_by_run_after_this_run_in_order_on_the_same_thread) {
  check::Count ran;
  std::vector<int> order;
  std::set<std::thread::id> threads;
  const auto note = [&](int number) {
    order.push_back(number);
    threads.insert(std::this_thread::get_id());
    EXPECT_FALSE(Executor::Global().AwaitIdle(std::chrono::nanoseconds(0)));
    ran.Add();
  };
  Executor::Global().Run([&](const absl::Status&) {
    Executor::RunAfterThis([&](const absl::Status&) { note(1); });
    Executor::RunAfterThis([&](const absl::Status&) {
      Executor::RunAfterThis([&](const absl::Status&) { note(3); });
      note(2);
    });
    note(0);
  });
  EXPECT_TRUE(ran.Await(4));
  EXPECT_TRUE(Executor::Global().AwaitIdle(check::kDeadline));
  EXPECT_TRUE(order == std::vector<int>({0, 1, 2, 3}));
  EXPECT_EQ(threads.size(), std::size_t{1});
}

// Repeated, because a thread of an earlier test may be faster.
TEST(Executor, a_thread_that_spins_takes_the_next_task) {
  if (std::thread::hardware_concurrency() < 2) return;
  EXPECT_TRUE(check::Becomes([] {
    check::Count ran;
    std::thread::id first;
    std::thread::id second;
    Executor::Global().Run([&](const absl::Status&) {
      first = std::this_thread::get_id();
      Executor::SpinAfterTask(check::kDeadline);
      ran.Add();
    });
    EXPECT_TRUE(ran.Await());
    Executor::Global().AwaitSpinningThread(check::kDeadline);
    Executor::Global().Run([&](const absl::Status&) {
      second = std::this_thread::get_id();
      ran.Add();
    });
    EXPECT_TRUE(ran.Await(2));
    return first == second;
  }));
}

TEST(Executor, a_task_without_a_thread_gets_an_error_and_the_executor_becomes_idle) {
  EXPECT_TRUE(Deadlines::Global().Prepare().ok());
  check::Count refused;
  check::Count called;
  check::Count release;
  {
    const check::NoThreads none;
    // Idle threads of earlier tests take one task each, and keep it.
    for (int task = 0; task < 5000 && refused.value() == 0; ++task) {
      Executor::Global().Run([&](const absl::Status& started) {
        if (!started.ok()) {
          EXPECT_EQ(started.code(), absl::StatusCode::kResourceExhausted);
          refused.Add();
        }
        called.Add();
        if (started.ok()) EXPECT_TRUE(release.Await());
      });
      ASSERT_TRUE(called.Await(task + 1));
    }
  }
  EXPECT_EQ(refused.value(), 1);
  release.Add();
  EXPECT_TRUE(Executor::Global().AwaitIdle(check::kDeadline));
}

TEST(Executor, the_executor_is_idle_when_no_task_is_left) {
  check::Count go;
  Executor::Global().Run([&go](const absl::Status&) { EXPECT_TRUE(go.Await()); });
  EXPECT_FALSE(Executor::Global().AwaitIdle(check::kMoment));
  go.Add();
  EXPECT_TRUE(Executor::Global().AwaitIdle(check::kDeadline));
  Executor::Global().AwaitSpinningThread(check::kMoment);  // No thread spins, and the wait ends.
}

}  // namespace
