// What arrivals.h promises.
#include "tensorflow_ipu/kernels/core/arrivals.h"

#include <chrono>
#include <cstdint>

#include "tests/core/check.h"

namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;
using tensorflow_ipu::core::Arrivals;

// Rows that come at such intervals in turn, the first at time 0.
struct Rows {
  void Come(int64_t count, microseconds interval, microseconds other) {
    for (int64_t i = 0; i < count; ++i) {
      arrivals.Came(now, ++rows);
      now += i % 2 == 0 ? interval : other;
    }
  }

  Arrivals arrivals;
  Arrivals::Clock::time_point now;
  int64_t rows = 0;
};

TEST(before_there_is_an_interval_nothing_is_due) {
  Rows rows;
  CHECK(!rows.arrivals.Next(0).has_value());
  rows.Come(1, microseconds(400), microseconds(400));
  CHECK(!rows.arrivals.Next(1).has_value());
}

TEST(the_next_of_regular_rows_is_due_an_interval_after_the_last) {
  Rows rows;
  rows.Come(50, microseconds(400), microseconds(400));
  const auto due = rows.arrivals.Next(50);
  if (!CHECK(due.has_value())) return;
  CHECK(due->from <= rows.now && rows.now <= due->to);
  CHECK(due->to - due->from < microseconds(10));
}

TEST(where_rows_come_a_little_irregularly_there_is_a_margin) {
  Rows rows;
  rows.Come(200, microseconds(400), microseconds(420));
  const auto due = rows.arrivals.Next(200);
  if (!CHECK(due.has_value())) return;
  CHECK(due->to - due->from >= microseconds(20));
  CHECK(due->from <= rows.now && rows.now <= due->to);
}

TEST(irregular_rows_are_due_at_no_time) {
  Rows rows;
  rows.Come(200, microseconds(100), microseconds(900));
  CHECK(!rows.arrivals.Next(200).has_value());
}

TEST(a_long_interval_among_regular_ones_changes_little) {
  Rows rows;
  rows.Come(100, microseconds(400), microseconds(400));
  rows.now += microseconds(100000);
  rows.Come(20, microseconds(400), microseconds(400));
  const auto due = rows.arrivals.Next(120);
  if (!CHECK(due.has_value())) return;
  CHECK(due->from <= rows.now && rows.now <= due->to);
}

TEST(after_a_row_that_nobody_waited_for_nothing_is_known) {
  Rows rows;
  rows.Come(50, microseconds(400), microseconds(400));
  CHECK(!rows.arrivals.Next(51).has_value());
  rows.now += microseconds(400);
  rows.rows = 51;
  rows.Come(1, microseconds(400), microseconds(400));
  CHECK(rows.arrivals.Next(52).has_value());
}

TEST(who_spins_takes_a_tenth_of_the_time_at_most) {
  for (const microseconds interval : {microseconds(400), microseconds(1000), microseconds(100000)}) {
    Rows rows;
    nanoseconds spun{0};
    for (int64_t i = 0; i < 2000; ++i) {
      rows.Come(1, interval, interval);
      const auto due = rows.arrivals.Next(rows.rows);
      if (!due.has_value()) continue;
      CHECK(due->spin.count() > 0);
      rows.arrivals.Spun(due->spin);
      spun += due->spin;
    }
    CHECK(spun.count() > 0);
    CHECK(spun <= 2000 * interval / 10);
  }
}

}  // namespace
