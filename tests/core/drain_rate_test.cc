// What drain_rate.h promises.
#include "tensorflow_ipu/kernels/core/drain_rate.h"

#include <chrono>

#include "tests/core/check.h"

namespace {

using std::chrono::microseconds;
using tensorflow_ipu::core::DrainRate;

TEST(a_queue_that_was_full_once_has_no_rate) {
  DrainRate rate;
  CHECK(!rate.TimeFor(1).has_value());
  rate.Full(DrainRate::Clock::now(), 100);
  CHECK(!rate.TimeFor(1).has_value());
}

TEST(the_rate_is_that_between_the_last_two_times_that_it_was_full) {
  DrainRate rate;
  const auto begin = DrainRate::Clock::now();
  rate.Full(begin, 0);
  rate.Full(begin + microseconds(300), 100);
  CHECK(rate.TimeFor(16) == microseconds(48));
  rate.Full(begin + microseconds(500), 110);
  CHECK(rate.TimeFor(16) == microseconds(320));
}

TEST(a_time_in_which_nothing_was_taken_says_nothing) {
  DrainRate rate;
  const auto begin = DrainRate::Clock::now();
  rate.Full(begin, 0);
  rate.Full(begin + microseconds(300), 100);
  rate.Full(begin + microseconds(900), 100);
  CHECK(rate.TimeFor(1) == microseconds(3));
  rate.Full(begin + microseconds(1000), 200);
  CHECK(rate.TimeFor(1) == microseconds(1));
}

}  // namespace
