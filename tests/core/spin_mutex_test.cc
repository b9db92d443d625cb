// What spin_mutex.h promises.
#include "tensorflow_ipu/kernels/core/spin_mutex.h"

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "tests/core/check.h"
#include "tests/core/threads.h"

namespace {

using tensorflow_ipu::core::SpinLock;
using tensorflow_ipu::core::SpinMutex;

TEST(one_thread_at_a_time_holds_it) {
  SpinMutex mutex;
  int64_t count = 0;  // Not atomic: ThreadSanitizer sees each use that another thread's is not ordered with.
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 2000; ++turn) {
        const SpinLock lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(count, 8000);
}

TEST(who_waits_long_gets_it_too) {
  SpinMutex mutex;
  check::Count asks;
  check::Count has;
  std::thread other;
  {
    const SpinLock lock(mutex);
    other = std::thread([&] {
      asks.Add();
      const SpinLock other_lock(mutex);
      has.Add();
    });
    CHECK(asks.Await());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // Longer than it spins, as a rule.
    CHECK_EQ(has.value(), 0);
  }
  CHECK(has.Await());
  other.join();
}

}  // namespace
