// An asynchronous mutex: one holder at a time, in order, on any thread.
#include "tensorflow_ipu/kernels/core/mutex.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/core/check.h"
#include "tests/core/threads.h"

namespace {

using check::Count;
using tensorflow_ipu::core::AsyncMutex;

TEST(the_first_lock_comes_at_once_and_on_the_callers_thread) {
  AsyncMutex mutex;
  std::thread::id thread;
  mutex.Lock([&] { thread = std::this_thread::get_id(); });
  CHECK(thread == std::this_thread::get_id());
}

TEST(locks_come_in_the_unlocks_before_and_in_the_order_in_which_they_were_asked_for) {
  AsyncMutex mutex;
  std::vector<int> order;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 10; ++i) mutex.Lock([&, i] { order.push_back(i); });
    CHECK_EQ(order.size(), std::size_t{1});
    for (int i = 1; i <= 10; ++i) {
      mutex.Unlock();
      CHECK_EQ(order.size(), static_cast<std::size_t>(std::min(i + 1, 10)));
    }
    CHECK(order == std::vector<int>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
    order.clear();
  }
}

TEST(an_unlock_where_the_lock_comes_locks_for_the_next) {
  AsyncMutex mutex;
  std::vector<int> order;
  mutex.Lock([] {});
  for (int i = 0; i < 5; ++i) {
    mutex.Lock([&, i] {
      order.push_back(i);
      mutex.Unlock();
    });
  }
  CHECK(order.empty());
  mutex.Unlock();
  CHECK(order == std::vector<int>({0, 1, 2, 3, 4}));
}

TEST(a_holder_may_ask_again_and_comes_after_those_that_wait) {
  AsyncMutex mutex;
  std::vector<int> order;
  mutex.Lock([&] {
    order.push_back(0);
    mutex.Lock([&] { order.push_back(2); });
  });
  mutex.Lock([&] { order.push_back(3); });
  CHECK(order == std::vector<int>({0}));
  mutex.Unlock();
  mutex.Unlock();
  mutex.Unlock();
  CHECK(order == std::vector<int>({0, 2, 3}));
}

TEST(what_a_callback_holds_goes_once_it_was_called) {
  AsyncMutex mutex;
  const auto held = std::make_shared<int>(0);
  mutex.Lock([] {});
  mutex.Lock([held] {});
  CHECK_EQ(held.use_count(), 2);
  mutex.Unlock();
  CHECK_EQ(held.use_count(), 1);
  mutex.Unlock();
}

TEST(locks_of_many_threads_never_overlap_and_all_come) {
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  const auto mutex = std::make_shared<AsyncMutex>();
  Count done;
  std::atomic<int> under_way{0};
  int unguarded = 0;  // For ThreadSanitizer: the mutex orders the accesses.
  check::OnThreads(kThreads, [&](int) {
    for (int i = 0; i < kEach; ++i) {
      mutex->Lock([&] {
        CHECK_EQ(under_way.fetch_add(1), 0);
        ++unguarded;
        under_way.fetch_sub(1);
        done.Add();
        if (done.value() % 2 == 0) {
          mutex->Unlock();
        } else {
          std::thread([mutex] { mutex->Unlock(); }).detach();
        }
      });
    }
  });
  CHECK(done.Await(kThreads * kEach));
  // The last detached Unlock may still run; this lock comes after it.
  Count last;
  mutex->Lock([&] { last.Add(); });
  CHECK(last.Await());
  CHECK_EQ(unguarded, kThreads * kEach);
}

}  // namespace
