// What turns.h promises: one at a time, in order, on whichever threads, and nobody is forgotten.
#include "tensorflow_ipu/kernels/core/turns.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/core/check.h"
#include "tests/core/threads.h"

namespace {

using check::Count;
using tensorflow_ipu::core::Turns;

TEST(the_first_turn_comes_at_once_and_on_the_callers_thread) {
  Turns turns;
  std::thread::id thread;
  turns.Take([&] { thread = std::this_thread::get_id(); });
  CHECK(thread == std::this_thread::get_id());
}

TEST(a_turn_waits_for_the_end_of_the_one_before_and_begins_in_it) {
  Turns turns;
  bool first = false;
  bool second = false;
  turns.Take([&] { first = true; });
  turns.Take([&] { second = true; });
  CHECK(first);
  CHECK(!second);
  turns.End();
  CHECK(second);
  turns.End();
}

TEST(turns_come_in_the_order_in_which_they_were_taken) {
  Turns turns;
  std::vector<int> order;
  for (int i = 0; i < 10; ++i) turns.Take([&, i] { order.push_back(i); });
  for (int i = 0; i < 10; ++i) turns.End();
  CHECK(order == std::vector<int>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(after_the_last_turn_the_next_comes_at_once_again) {
  Turns turns;
  int begun = 0;
  for (int i = 0; i < 3; ++i) {
    turns.Take([&] { ++begun; });
    CHECK_EQ(begun, i + 1);
    turns.End();
  }
}

TEST(a_turn_that_ends_where_it_begins_lets_the_next_one_begin) {
  Turns turns;
  std::vector<int> order;
  turns.Take([] {});
  for (int i = 0; i < 5; ++i) {
    turns.Take([&, i] {
      order.push_back(i);
      turns.End();
    });
  }
  CHECK(order.empty());
  turns.End();
  CHECK(order == std::vector<int>({0, 1, 2, 3, 4}));
}

TEST(a_turn_may_take_another_which_comes_after_those_that_wait) {
  Turns turns;
  std::vector<int> order;
  turns.Take([&] {
    order.push_back(0);
    turns.Take([&] { order.push_back(2); });
  });
  turns.Take([&] { order.push_back(3); });
  CHECK(order == std::vector<int>({0}));
  turns.End();
  turns.End();
  turns.End();
  CHECK(order == std::vector<int>({0, 2, 3}));
}

TEST(what_a_turn_holds_goes_once_it_has_begun) {
  Turns turns;
  const auto held = std::make_shared<int>(0);
  turns.Take([] {});
  turns.Take([held] {});
  CHECK_EQ(held.use_count(), 2);
  turns.End();
  CHECK_EQ(held.use_count(), 1);
  turns.End();
}

TEST(turns_of_many_threads_never_overlap_and_all_come) {
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  const auto turns = std::make_shared<Turns>();
  Count done;
  std::atomic<int> under_way{0};
  int unguarded = 0;  // For ThreadSanitizer: turns order what they do, on whichever threads.
  {
    check::Threads takers;
    for (int t = 0; t < kThreads; ++t) {
      takers.Start([&] {
        for (int i = 0; i < kEach; ++i) {
          turns->Take([&] {
            CHECK_EQ(under_way.fetch_add(1), 0);
            ++unguarded;
            under_way.fetch_sub(1);
            done.Add();
            if (done.value() % 2 == 0) {
              turns->End();
            } else {
              std::thread([turns] { turns->End(); }).detach();  // As where the last replica of a run ends.
            }
          });
        }
      });
    }
  }
  CHECK(done.Await(kThreads * kEach));
  // The last detached End may be under way still; a turn of our own comes after it.
  Count last;
  turns->Take([&] { last.Add(); });
  CHECK(last.Await());
  CHECK_EQ(unguarded, kThreads * kEach);
}

}  // namespace
