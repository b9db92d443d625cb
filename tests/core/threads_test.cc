// Tests the start of threads, and spins.
#include "tensorflow_ipu/kernels/support/threads.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tensorflow_ipu/kernels/support/waiting.h"
#include "tests/core/threads.h"

namespace {

using std::chrono::milliseconds;
using namespace tensorflow_ipu::core;

TEST(Threads, a_thread_has_its_name_and_releases_its_work) {
  check::Count gone;
  std::string name;
  const absl::Status started = StartThread("ipu-test", [&name, held = check::Held(gone)] {
    char actual[16];
    pthread_getname_np(pthread_self(), actual, sizeof(actual));
    name = actual;
  });
  EXPECT_TRUE(started.ok());
  EXPECT_TRUE(gone.Await());
  EXPECT_EQ(name, "ipu-test");
}

TEST(Threads, without_a_thread_the_error_contains_the_reason_and_advice) {
  absl::Status started;
  {
    const check::NoThreads none;
    started = StartThread("ipu-test", [] { EXPECT_TRUE(false); });
  }
  EXPECT_EQ(started.code(), absl::StatusCode::kResourceExhausted);
  for (const char* const word : {"no further thread", "`ipu-test`", "ulimit -u"}) {
    EXPECT_TRUE(absl::StrContains(started.message(), word)) << started;
  }
  EXPECT_TRUE(StartThread("ipu-test", [] {}).ok());
}

TEST(Threads, try_threads_fails_without_threads) {
  EXPECT_TRUE(TryThreads("ipu-try", 0).ok());
  EXPECT_TRUE(TryThreads("ipu-try", 5).ok());
  const check::NoThreads none;
  const absl::Status tried = TryThreads("ipu-try", 5);
  EXPECT_EQ(tried.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(tried.message(), "`ipu-try`")) << tried;
}

TEST(Threads, a_spin_lasts_until_its_limit_and_checks_even_with_a_limit_of_zero) {
  EXPECT_TRUE(SpinUntil(milliseconds(0), [] { return true; }));
  EXPECT_FALSE(SpinUntil(milliseconds(0), [] { return false; }));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(SpinUntil(milliseconds(5), [] { return false; }));
  EXPECT_TRUE(std::chrono::steady_clock::now() - start >= milliseconds(5));
}

TEST(Threads, a_spin_ends_when_another_thread_makes_it_true) {
  std::atomic<bool> done{false};
  check::Threads threads;
  threads.Start([&] { done = true; });
  EXPECT_TRUE(SpinUntil(check::kDeadline, [&] { return done.load(); }));
}

}  // namespace
