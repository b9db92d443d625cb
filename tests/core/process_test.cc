// Threads that compute are seen, and threads that wait are not.
#include "tensorflow_ipu/kernels/core/process.h"

#include <atomic>

#include "tests/core/check.h"
#include "tests/core/threads.h"

namespace {

using check::Becomes;
using check::Count;
using tensorflow_ipu::core::OthersCompute;

TEST(a_thread_that_computes_is_seen_and_one_that_waits_or_asks_is_not) {
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

}  // namespace
