// The executor: no task waits for another, and each runs once.
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

TEST(Executor, a_task_that_blocks_holds_no_other_up) {
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

TEST(Executor, every_task_runs_once_whoever_hands_it_in) {
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
  for (const std::atomic<int>& each : runs) EXPECT_EQ(each.load(), 2);
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

// Repeated: a thread that has done its task takes another one a little later.
TEST(Executor, a_thread_that_has_nothing_to_do_gets_the_next_task) {
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
// A regression: a program that continued after a wait had other results for subnormal numbers.
TEST(Executor, tasks_flush_subnormal_numbers_whoever_hands_them_in) {
  const unsigned before = __builtin_ia32_stmxcsr();
  for (const unsigned flush : {0x0000u, 0x8040u}) {
    __builtin_ia32_ldmxcsr((before & ~0x8040u) | flush);
    constexpr int kTasks = 8;
    check::Count running;
    check::Count done;
    for (int task = 0; task < kTasks; ++task) {
      Executor::Global().Run([&](const absl::Status&) {
        running.Add();
        EXPECT_TRUE(running.Await(kTasks));  // So that new threads start for some.
        EXPECT_EQ(__builtin_ia32_stmxcsr() & 0x8040u, 0x8040u);
        done.Add();
      });
    }
    EXPECT_TRUE(done.Await(kTasks));
  }
  __builtin_ia32_ldmxcsr(before);
}
#endif

TEST(Executor, what_a_task_holds_goes_when_it_has_run) {
  check::Count gone;
  Executor::Global().Run([held = check::Held(gone)](const absl::Status&) {});
  EXPECT_TRUE(gone.Await());
}

TEST(Executor, what_is_to_run_after_a_task_runs_then_in_order_on_its_thread) {
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

// Repeated: a thread of an earlier test may come first.
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

TEST(Executor, a_task_that_gets_no_thread_learns_that_and_idle_is_reached) {
  EXPECT_TRUE(Deadlines::Global().Prepare().ok());
  check::Count refused;
  check::Count heard;
  check::Count release;
  {
    const check::NoThreads none;
    // Idle threads of earlier tests take a task each, and keep it.
    for (int task = 0; task < 5000 && refused.value() == 0; ++task) {
      Executor::Global().Run([&](const absl::Status& started) {
        if (!started.ok()) {
          EXPECT_EQ(started.code(), absl::StatusCode::kResourceExhausted);
          refused.Add();
        }
        heard.Add();
        if (started.ok()) EXPECT_TRUE(release.Await());
      });
      ASSERT_TRUE(heard.Await(task + 1));
    }
  }
  EXPECT_EQ(refused.value(), 1);
  release.Add();
  EXPECT_TRUE(Executor::Global().AwaitIdle(check::kDeadline));
}

TEST(Executor, idle_is_when_no_task_is_left) {
  check::Count go;
  Executor::Global().Run([&go](const absl::Status&) { EXPECT_TRUE(go.Await()); });
  EXPECT_FALSE(Executor::Global().AwaitIdle(check::kMoment));
  go.Add();
  EXPECT_TRUE(Executor::Global().AwaitIdle(check::kDeadline));
  Executor::Global().AwaitSpinningThread(check::kMoment);  // No thread spins, and the wait has an end.
}

}  // namespace
