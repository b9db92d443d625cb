// What of_thread.h promises.
#include "tensorflow_ipu/kernels/core/of_thread.h"

#include <atomic>
#include <thread>

#include "tests/core/check.h"

namespace {

using tensorflow_ipu::core::OfThread;

std::atomic<int> ended{0};

struct Object {
  int value = 0;
  ~Object() { ++ended; }
};

TEST(each_thread_has_one_object_which_goes_with_it) {
  OfThread<Object>().value = 1;
  std::thread([] {
    CHECK_EQ(OfThread<Object>().value, 0);
    OfThread<Object>().value = 2;
    CHECK_EQ(OfThread<Object>().value, 2);
  }).join();
  CHECK_EQ(ended.load(), 1);
  CHECK_EQ(OfThread<Object>().value, 1);
}

}  // namespace
