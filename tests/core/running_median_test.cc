// What running_median.h promises.
#include "tensorflow_ipu/kernels/core/running_median.h"

#include <cstdint>

#include "tests/core/check.h"

namespace {

using tensorflow_ipu::core::RunningMedian;

TEST(it_settles_where_half_of_the_times_are_longer) {
  RunningMedian median;
  CHECK(median.nanoseconds() > 1000000000);
  median.Note(5000);
  CHECK_EQ(median.nanoseconds(), 5000);
  for (const int64_t extreme : {int64_t{1} << 40, int64_t{0}}) {
    median.Note(extreme);
    CHECK(median.nanoseconds() > 4000 && median.nanoseconds() < 6000);
    for (int i = 0; i < 2; ++i) median.Note(5000);
    CHECK_EQ(median.nanoseconds(), 5000);
  }
  for (const int64_t lasting : {1000000, 0, 70}) {
    for (int i = 0; i < 100; ++i) median.Note(lasting);
    CHECK_EQ(median.nanoseconds(), lasting);
  }
}

// What went wrong: a program that was answered before its thread had left it went on there, its answer took no time,
// and for ten steps all programs ran one after the other.
TEST(answers_that_take_no_time_now_and_then_leave_it_as_it_is) {
  RunningMedian median;
  for (int i = 0; i < 1000; ++i) {
    median.Note(i % 5 == 4 ? 100 : 170000);
    CHECK(median.nanoseconds() > 100000);
  }
}

}  // namespace
