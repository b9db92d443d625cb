// The start of threads, and spins.
#include "tensorflow_ipu/kernels/support/threads.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <string>

#include "tensorflow_ipu/kernels/support/waiting.h"
#include "tests/core/check.h"
#include "tests/core/threads.h"

namespace {

using std::chrono::milliseconds;
using namespace tensorflow_ipu::core;

TEST(a_thread_bears_its_name_and_lets_its_work_go) {
  check::Count gone;
  std::string name;
  const Status started = StartThread("ipu-test", [&name, held = check::Held(gone)] {
    char found[16];
    pthread_getname_np(pthread_self(), found, sizeof(found));
    name = found;
  });
  CHECK(started.ok());
  CHECK(gone.Await());
  CHECK_EQ(name, "ipu-test");
}

TEST(where_the_system_gives_no_thread_the_outcome_says_so_and_what_to_do) {
  Status started;
  {
    const check::NoThreads none;
    started = StartThread("ipu-test", [] { CHECK(false); });
  }
  CHECK(started.code == Code::kResourceExhausted);
  for (const char* const word : {"no further thread", "`ipu-test`", "ulimit -u"}) {
    CHECK(started.message.find(word) != std::string::npos);
  }
  CHECK(StartThread("ipu-test", [] {}).ok());
}

TEST(a_try_says_whether_there_are_threads) {
  CHECK(TryThreads("ipu-try", 0).ok());
  CHECK(TryThreads("ipu-try", 5).ok());
  const check::NoThreads none;
  const Status tried = TryThreads("ipu-try", 5);
  CHECK(tried.code == Code::kResourceExhausted);
  CHECK(tried.message.find("`ipu-try`") != std::string::npos);
}

TEST(a_spin_lasts_as_long_as_it_may_and_asks_even_if_it_may_not_wait) {
  CHECK(SpinUntil(milliseconds(0), [] { return true; }));
  CHECK(!SpinUntil(milliseconds(0), [] { return false; }));
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
