// Deadlines: each call runs once, in the order of times, unless it is removed.
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

// Blocks the thread of the deadlines while it lives, so that all deadlines that are added meanwhile are there when the
// first one is due.
class Busy {
 public:
  Busy() {
    Deadlines::Global().Add(Clock::now(), [this] {
      came_.Add();
      EXPECT_TRUE(go_on_.Await());
      gone_.Add();
    });
    EXPECT_TRUE(came_.Await());
  }

  ~Busy() {
    go_on_.Add();
    EXPECT_TRUE(gone_.Await());
  }

 private:
  Count came_;
  Count go_on_;
  Count gone_;
};

TEST(Deadlines, calls_come_due_in_the_order_of_their_times_and_not_before) {
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

TEST(Deadlines, calls_of_one_time_come_due_in_the_order_of_their_adding) {
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

TEST(Deadlines, a_past_or_near_time_does_not_wait_for_a_far_one_that_came_before) {
  const Deadlines::Ticket far = Deadlines::Global().Add(Clock::now() + hours(1), [] {});
  for (const milliseconds wait : {milliseconds(hours(-1)), milliseconds(1)}) {
    Count due;
    Deadlines::Global().Add(Clock::now() + wait, [&] { due.Add(); });
    EXPECT_TRUE(due.Await());
  }
  Deadlines::Global().Remove(far);
}

TEST(Deadlines, what_is_taken_back_never_runs_and_its_captures_go) {
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

TEST(Deadlines, a_due_call_may_add_and_take_back) {
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

// What a call captures may be the last to hold a queue, whose destructor removes other deadlines.
TEST(Deadlines, captures_that_use_the_deadlines_when_they_go_lock_nothing_up) {
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

TEST(Deadlines, threads_that_add_and_take_back_at_once_lose_no_call) {
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
