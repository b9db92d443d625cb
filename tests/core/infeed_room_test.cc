// What infeed.h promises the pump: room, and sleep until there is some.
#include <cstddef>
#include <cstdint>

#include "tensorflow_ipu/kernels/core/infeed.h"
#include "tests/core/check.h"
#include "tests/core/infeed_fixture.h"
#include "tests/core/threads.h"

namespace {

using check::Count;
using check::Later;
using check::MakeQueue;
using check::Push;
using check::Taken;
using tensorflow_ipu::core::Code;
using tensorflow_ipu::core::Outcome;

TEST(push_waits_at_the_depth_until_an_element_is_taken) {
  constexpr int kDepth = 2;
  const auto queue = MakeQueue(kDepth);
  Count pushed;
  check::Threads threads;
  threads.Start([&] {
    for (int i = 0; i < 6; ++i) {
      CHECK(Push(*queue, i).ok());
      pushed.Add();
    }
  });
  for (int i = 0; i < 4; ++i) {
    CHECK(pushed.Await(i + kDepth));
    CHECK(!pushed.Await(i + kDepth + 1, check::kMoment));
    CHECK_EQ(Taken(*queue), i);
  }
  CHECK(pushed.Await(6));
}

TEST(close_ends_a_push_that_waits_and_all_later_ones) {
  const auto queue = MakeQueue(1);
  CHECK(Push(*queue, 0).ok());
  Count ended;
  check::Threads threads;
  threads.Start([&] {
    CHECK(Push(*queue, 1).code == Code::kCancelled);
    ended.Add();
  });
  CHECK(!ended.Await(1, check::kMoment));
  queue->Close();
  CHECK(ended.Await());
  const Outcome after = Push(*queue, 2);
  CHECK(after.code == Code::kCancelled);
  CHECK(after.message.find("`queue`") != std::string::npos);
}

// Whether a queue of depth 1 ever comes to hold two elements of so many bytes, when it runs full and then empty
// `rounds` times at the most.
bool GetsMoreRoom(std::size_t bytes, int rounds) {
  const auto queue = MakeQueue(1);
  Count pushed;
  check::Threads threads;
  threads.Start([&] {
    while (Push(*queue, 0, bytes).ok()) pushed.Add();
  });
  bool more = false;
  int64_t taken = 0;
  for (int round = 0; round < rounds && !more; ++round) {
    more = pushed.Await(taken + 2, check::kMoment);
    while (Taken(*queue) != check::kNothing) ++taken;
  }
  queue->Close();
  return more;
}

TEST(small_elements_get_more_room_than_the_depth_where_the_queue_runs_full_and_empty) {
  CHECK(GetsMoreRoom(4, check::kDeadline / check::kMoment));
  CHECK(!GetsMoreRoom(check::kLargeBytes, 5));
}

// The pump refills by halves; what is left over of a row can be more than half, and nobody will take it.
TEST(a_pump_that_waits_goes_on_where_no_whole_row_is_left) {
  constexpr int64_t kLanes = 4;
  const auto queue = MakeQueue(1);
  Count pushed;
  check::Threads threads;
  threads.Start([&] {
    for (int i = 0; i < 2 * kLanes; ++i) {
      CHECK(Push(*queue, i).ok());
      pushed.Add();
    }
  });
  const auto later = Later(*queue, 0, kLanes);
  CHECK(later->done.Await());
  CHECK_EQ(*later->element, 0);
  for (int64_t lane = 1; lane < kLanes; ++lane) {
    CHECK(pushed.Await(kLanes + lane));
    CHECK_EQ(Taken(*queue, lane, kLanes), lane);
  }
  CHECK(pushed.Await(2 * kLanes));
  for (int64_t lane = 0; lane < kLanes; ++lane) CHECK_EQ(Taken(*queue, lane, kLanes), kLanes + lane);
}

}  // namespace
