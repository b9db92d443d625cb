// The executor: no task waits for another, and each runs once.
#include "tensorflow_ipu/kernels/support/threads.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "tensorflow_ipu/kernels/support/status.h"
#include "tests/core/check.h"
#include "tests/core/threads.h"

namespace {

using namespace tensorflow_ipu::core;

TEST(a_task_that_blocks_holds_no_other_up) {
  check::Count release;
  check::Count blocked_ends;
  check::Count other_ran;
  Executor::Global().Run([&](const Status&) {
    CHECK(release.Await());
    blocked_ends.Add();
  });
  Executor::Global().Run([&](const Status&) { other_ran.Add(); });
  CHECK(other_ran.Await());
  release.Add();
  CHECK(blocked_ends.Await());
}

TEST(every_task_runs_once_whoever_hands_it_in) {
  constexpr int kTasks = 200;
  std::vector<std::atomic<int>> runs(kTasks);
  check::Count done;
  const auto count = [&](int task) {
    ++runs[task];
    done.Add();
  };
  for (int task = 0; task < kTasks; ++task) {
    Executor::Global().Run([&, task](const Status&) {
      Executor::Global().Run([&, task](const Status&) { count(task); });
      count(task);
    });
  }
  CHECK(done.Await(2 * kTasks));
  CHECK(Executor::Global().AwaitIdle(check::kDeadline));
  for (const std::atomic<int>& each : runs) CHECK_EQ(each.load(), 2);
}

TEST(many_tasks_that_wait_for_each_other_all_run) {
  constexpr int kTasks = 32;
  check::Count running;
  check::Count done;
  for (int task = 0; task < kTasks; ++task) {
    Executor::Global().Run([&](const Status&) {
      running.Add();
      CHECK(running.Await(kTasks));
      done.Add();
    });
  }
  CHECK(done.Await(kTasks));
}

// Repeated: a thread that has done its task takes another one a little later.
TEST(a_thread_that_has_nothing_to_do_gets_the_next_task) {
  std::set<std::thread::id> threads;
  CHECK(check::Becomes([&] {
    check::Count done;
    std::thread::id thread;
    Executor::Global().Run([&](const Status&) {
      thread = std::this_thread::get_id();
      done.Add();
    });
    return CHECK(done.Await()) && !threads.insert(thread).second;
  }));
}

#if defined(__x86_64__)
// A regression: a program that continued after a wait had other results for subnormal numbers.
TEST(tasks_flush_subnormal_numbers_whoever_hands_them_in) {
  const unsigned before = __builtin_ia32_stmxcsr();
  for (const unsigned flush : {0x0000u, 0x8040u}) {
    __builtin_ia32_ldmxcsr((before & ~0x8040u) | flush);
    constexpr int kTasks = 8;
    check::Count running;
    check::Count done;
    for (int task = 0; task < kTasks; ++task) {
      Executor::Global().Run([&](const Status&) {
        running.Add();
        CHECK(running.Await(kTasks));  // So that new threads start for some.
        CHECK_EQ(__builtin_ia32_stmxcsr() & 0x8040u, 0x8040u);
        done.Add();
      });
    }
    CHECK(done.Await(kTasks));
  }
  __builtin_ia32_ldmxcsr(before);
}
#endif

TEST(what_a_task_holds_goes_when_it_has_run) {
  check::Count gone;
  Executor::Global().Run([held = check::Held(gone)](const Status&) {});
  CHECK(gone.Await());
}

TEST(what_is_to_run_after_a_task_runs_then_in_order_on_its_thread) {
  check::Count ran;
  std::vector<int> order;
  std::set<std::thread::id> threads;
  const auto note = [&](int number) {
    order.push_back(number);
    threads.insert(std::this_thread::get_id());
    CHECK(!Executor::Global().AwaitIdle(std::chrono::nanoseconds(0)));
    ran.Add();
  };
  Executor::Global().Run([&](const Status&) {
    Executor::RunAfterThis([&](const Status&) { note(1); });
    Executor::RunAfterThis([&](const Status&) {
      Executor::RunAfterThis([&](const Status&) { note(3); });
      note(2);
    });
    note(0);
  });
  CHECK(ran.Await(4));
  CHECK(Executor::Global().AwaitIdle(check::kDeadline));
  CHECK(order == std::vector<int>({0, 1, 2, 3}));
  CHECK_EQ(threads.size(), std::size_t{1});
}

// Repeated: a thread of an earlier test may come first.
TEST(a_thread_that_spins_takes_the_next_task) {
  if (std::thread::hardware_concurrency() < 2) return;
  CHECK(check::Becomes([] {
    check::Count ran;
    std::thread::id first;
    std::thread::id second;
    Executor::Global().Run([&](const Status&) {
      first = std::this_thread::get_id();
      Executor::SpinAfterTask(check::kDeadline);
      ran.Add();
    });
    CHECK(ran.Await());
    Executor::Global().AwaitSpinningThread(check::kDeadline);
    Executor::Global().Run([&](const Status&) {
      second = std::this_thread::get_id();
      ran.Add();
    });
    CHECK(ran.Await(2));
    return first == second;
  }));
}

TEST(a_task_that_gets_no_thread_learns_that_and_idle_is_reached) {
  CHECK(Deadlines::Global().Prepare().ok());
  check::Count refused;
  check::Count heard;
  check::Count release;
  {
    const check::NoThreads none;
    // Idle threads of earlier tests take a task each, and keep it.
    for (int task = 0; task < 5000 && refused.value() == 0; ++task) {
      Executor::Global().Run([&](const Status& started) {
        if (!started.ok()) {
          CHECK(started.code == Code::kResourceExhausted);
          refused.Add();
        }
        heard.Add();
        if (started.ok()) CHECK(release.Await());
      });
      if (!CHECK(heard.Await(task + 1))) break;
    }
  }
  CHECK_EQ(refused.value(), 1);
  release.Add();
  CHECK(Executor::Global().AwaitIdle(check::kDeadline));
}

TEST(idle_is_when_no_task_is_left) {
  check::Count go;
  Executor::Global().Run([&go](const Status&) { CHECK(go.Await()); });
  CHECK(!Executor::Global().AwaitIdle(check::kMoment));
  go.Add();
  CHECK(Executor::Global().AwaitIdle(check::kDeadline));
  Executor::Global().AwaitSpinningThread(check::kMoment);  // No thread spins, and the wait has an end.
}

}  // namespace
