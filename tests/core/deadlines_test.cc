// Tests that each call of a deadline runs once, in the order of times, unless it is removed.
#include "tensorflow_ipu/kernels/support/threads.h"

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/threads.h"

namespace {

using check::Count;
using tensorflow_ipu::core::Deadlines;
using Clock = Deadlines::Clock;
using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// Blocks the thread of the deadlines while it exists, so that all deadlines added in the meantime exist when the first
// one is due.
class Busy {
 public:
  Busy() {
    Deadlines::Global().Add(Clock::now(), [this] {
      started_.Add();
      EXPECT_TRUE(released_.Await());
      ended_.Add();
    });
    EXPECT_TRUE(started_.Await());
  }

  ~Busy() {
    released_.Add();
    EXPECT_TRUE(ended_.Await());
  }

 private:
  Count started_;
  Count released_;
  Count ended_;
};

TEST(Deadlines, calls_run_in_the_order_of_their_times_and_not_before) {
  std::vector<int> order;  // Written on the thread of the deadlines.
  Count due;
  const Clock::time_point start = Clock::now();
  const auto add = [&](int number, milliseconds wait) {
    Deadlines::Global().Add(start + wait, [&, number, wait] {
      EXPECT_TRUE(Clock::now() >= start + wait);
      order.push_back(number);
      due.Add();
    });
  };
  {
    const Busy busy;
    add(3, milliseconds(30));
    add(1, milliseconds(10));
    add(2, milliseconds(20));
  }
  ASSERT_TRUE(due.Await(3));
  EXPECT_TRUE(order == std::vector<int>({1, 2, 3}));
}

TEST(Deadlines, calls_with_the_same_time_run_in_the_order_of_their_addition) {
  std::vector<int> order;
  Count due;
  const Clock::time_point when = Clock::now() + milliseconds(10);
  for (int i = 0; i < 20; ++i) {
    Deadlines::Global().Add(when, [&, i] {
      order.push_back(i);
      due.Add();
    });
  }
  ASSERT_TRUE(due.Await(20));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(order[i], i);
}

TEST(Deadlines, a_past_or_near_time_does_not_wait_for_an_earlier_added_far_one) {
  const Deadlines::Ticket far = Deadlines::Global().Add(Clock::now() + hours(1), [] {});
  for (const milliseconds wait : {milliseconds(hours(-1)), milliseconds(1)}) {
    Count due;
    Deadlines::Global().Add(Clock::now() + wait, [&] { due.Add(); });
    EXPECT_TRUE(due.Await());
  }
  Deadlines::Global().Remove(far);
}

TEST(Deadlines, a_removed_call_never_runs_and_its_captures_are_released) {
  Count ran;
  Count after;
  auto held = std::make_shared<int>(0);
  const Clock::time_point when = Clock::now() + milliseconds(10);
  Deadlines::Ticket ticket;
  {
    const Busy no_call;
    ticket = Deadlines::Global().Add(when, [&ran, held] { ran.Add(); });
    Deadlines::Global().Add(when, [&] { after.Add(); });
    Deadlines::Global().Remove(ticket);
  }
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_TRUE(after.Await());
  EXPECT_EQ(ran.value(), 0);
  Deadlines::Global().Remove(ticket);
}

TEST(Deadlines, a_due_call_may_add_and_remove_calls) {
  Count done;
  int runs = 0;
  Deadlines::Ticket self;
  const Deadlines::Ticket never = Deadlines::Global().Add(Clock::now() + hours(1), [] {});
  std::function<void()> again = [&] {
    Deadlines::Global().Remove(self);
    if (++runs < 5) {
      self = Deadlines::Global().Add(Clock::now(), again);
      return;
    }
    Deadlines::Global().Remove(never);
    done.Add();
  };
  Deadlines::Global().Add(Clock::now(), again);
  EXPECT_TRUE(done.Await());
}

// A call's captures may own the last reference to a queue, whose destructor removes other deadlines.
TEST(Deadlines, captures_whose_destructors_use_the_deadlines_cause_no_deadlock) {
  Count gone;
  const auto held = [&gone] {
    const Deadlines::Ticket other = Deadlines::Global().Add(Clock::now() + hours(1), [] {});
    return std::shared_ptr<int>(new int(0), [&gone, other](const int* number) {
      delete number;
      Deadlines::Global().Remove(other);
      gone.Add();
    });
  };
  Deadlines::Global().Add(Clock::now(), [kept = held()] {});
  EXPECT_TRUE(gone.Await(1));
  const Deadlines::Ticket ticket = Deadlines::Global().Add(Clock::now() + hours(1), [kept = held()] {});
  Deadlines::Global().Remove(ticket);
  EXPECT_TRUE(gone.Await(2));
}

TEST(Deadlines, threads_that_add_and_remove_concurrently_lose_no_call) {
  constexpr int kThreads = 4;
  constexpr int kEach = 200;
  Count due;
  check::OnThreads(kThreads, [&](int) {
    for (int i = 0; i < kEach; ++i) {
      Deadlines::Global().Add(Clock::now() + microseconds(i), [&] { due.Add(); });
      Deadlines::Global().Remove(Deadlines::Global().Add(Clock::now() + hours(1), [&] { due.Add(1000000); }));
    }
  });
  EXPECT_TRUE(due.Await(kThreads * kEach));
  EXPECT_EQ(due.value(), kThreads * kEach);
}

}  // namespace
