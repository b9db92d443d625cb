// What waiting.h promises of a spinning thread.
#include "tensorflow_ipu/kernels/core/waiting.h"

#include <atomic>
#include <chrono>

#include "tests/core/check.h"
#include "tests/core/threads.h"

namespace {

using std::chrono::milliseconds;
using tensorflow_ipu::core::SpinUntil;

TEST(a_spin_asks_even_if_it_may_not_wait) {
  CHECK(SpinUntil(milliseconds(0), [] { return true; }));
  CHECK(!SpinUntil(milliseconds(0), [] { return false; }));
}

TEST(a_spin_lasts_as_long_as_it_may) {
  const auto start = std::chrono::steady_clock::now();
  CHECK(!SpinUntil(milliseconds(5), [] { return false; }));
  CHECK(std::chrono::steady_clock::now() - start >= milliseconds(5));
}

TEST(a_spin_ends_when_another_thread_makes_it_true) {
  std::atomic<bool> done{false};
  check::Threads threads;
  threads.Start([&] { done = true; });
  CHECK(SpinUntil(check::kDeadline, [&] { return done.load(); }));
}

}  // namespace
