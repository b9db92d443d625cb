// Threads that compute are seen, and threads that wait are not.
#include "tensorflow_ipu/kernels/core/process.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/core/check.h"
#include "tests/core/threads.h"

namespace {

using check::Count;
using tensorflow_ipu::core::OthersCompute;

// Waits for a condition: threads start to wait a little later.
template <typename Condition>
bool Becomes(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + check::kDeadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

TEST(a_thread_that_computes_is_seen_and_one_that_waits_is_not) {
  Count go_on;
  std::atomic<bool> compute{true};
  check::Threads threads;
  threads.Start([&] {
    while (compute) {
    }
    go_on.Await();
  });
  CHECK(Becomes([] { return OthersCompute(); }));
  compute = false;
  CHECK(Becomes([] { return !OthersCompute(); }));
  go_on.Add();
}

TEST(the_thread_that_asks_does_not_count) {
  CHECK(Becomes([] { return !OthersCompute(); }));
}

}  // namespace
