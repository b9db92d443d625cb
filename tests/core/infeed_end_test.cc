// Tests how an infeed makes its pump wait for room, and how waits end.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tensorflow_ipu/kernels/queues/infeed.h"
#include "tests/core/infeed_fixture.h"
#include "tests/core/threads.h"

namespace {

using check::Count;
using namespace check;
using std::chrono::hours;
using std::chrono::milliseconds;
using namespace tensorflow_ipu::core;

TEST(InfeedEnd, push_waits_at_the_depth_until_an_element_is_taken) {
  constexpr int kDepth = 2;
  const auto queue = MakeQueue(kDepth);
  Pusher pusher(*queue, 6);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(pusher.pushed.Await(i + kDepth));
    EXPECT_FALSE(pusher.pushed.Await(i + kDepth + 1, kMoment));
    EXPECT_EQ(Taken(*queue), i);
  }
  EXPECT_TRUE(pusher.pushed.Await(6));
}

TEST(InfeedEnd, close_ends_a_push_that_waits_and_all_later_ones) {
  const auto queue = MakeQueue(1);
  EXPECT_TRUE(Push(*queue, 0).ok());
  Count ended;
  Threads threads;
  threads.Start([&] {
    EXPECT_EQ(Push(*queue, 1).code(), absl::StatusCode::kCancelled);
    ended.Add();
  });
  EXPECT_FALSE(ended.Await(1, kMoment));
  queue->Close();
  EXPECT_TRUE(ended.Await());
  const absl::Status after = Push(*queue, 2);
  EXPECT_EQ(after.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(absl::StrContains(after.message(), "`queue`")) << after;
}

// Returns true if a queue of depth 1 ever has two elements of this size, when it runs full and then empty `rounds`
// times.
bool GetsMoreRoom(std::size_t bytes, int rounds) {
  const auto queue = MakeQueue(1);
  Count pushed;
  Threads threads;
  threads.Start([&] {
    while (Push(*queue, 0, bytes).ok()) pushed.Add();
  });
  bool more = false;
  int64_t taken = 0;
  for (int round = 0; round < rounds && !more; ++round) {
    more = pushed.Await(taken + 2, kMoment);
    while (Taken(*queue) != kNothing) ++taken;
  }
  queue->Close();
  return more;
}

TEST(InfeedEnd, small_elements_get_more_room_than_the_depth_if_the_queue_runs_full_and_empty) {
  EXPECT_TRUE(GetsMoreRoom(4, kDeadline / kMoment));
  EXPECT_FALSE(GetsMoreRoom(kLargeBytes, 5));
}

// The pump refills by halves. An incomplete row can be more than half, and no program takes its elements.
TEST(InfeedEnd, a_waiting_pump_continues_if_no_complete_row_is_left) {
  constexpr int64_t kReplicas = 4;
  const auto queue = MakeQueue(1);
  Pusher pusher(*queue, 2 * kReplicas);
  EXPECT_TRUE(Later(*queue, 0, kReplicas)->Gets(0));
  for (int64_t replica = 1; replica < kReplicas; ++replica) {
    EXPECT_TRUE(pusher.pushed.Await(kReplicas + replica));
    EXPECT_EQ(Taken(*queue, replica, kReplicas), replica);
  }
  EXPECT_TRUE(pusher.pushed.Await(2 * kReplicas));
  for (int64_t replica = 0; replica < kReplicas; ++replica)
    EXPECT_EQ(Taken(*queue, replica, kReplicas), kReplicas + replica);
}

TEST(InfeedEnd, a_wait_for_use_ends_with_the_first_take_or_with_the_queue) {
  for (const bool used : {true, false}) {
    const auto queue = MakeQueue(2);
    Count begun;
    Count ended;
    std::thread pump([&] {
      begun.Add();
      EXPECT_EQ(queue->AwaitUse(), used);
      ended.Add();
    });
    EXPECT_TRUE(begun.Await());
    EXPECT_EQ(ended.value(), 0);
    std::shared_ptr<Delivery> waits;
    if (used) {
      waits = Later(*queue);
    } else {
      queue->Close();
    }
    pump.join();
    EXPECT_EQ(queue->AwaitUse(), used);
    if (used) {
      EXPECT_TRUE(Push(*queue, 7).ok());
      EXPECT_TRUE(waits->Gets(7));
    }
  }
}

TEST(InfeedEnd, the_end_keeps_ready_elements_and_fails_waiting_and_later_takes) {
  const auto queue = MakeQueue(2);
  EXPECT_TRUE(Push(*queue, 0).ok());
  queue->End(absl::Status{absl::StatusCode::kInvalidArgument, "the map failed"});
  EXPECT_EQ(Taken(*queue), 0);
  const auto later = Later(*queue);
  EXPECT_EQ(later->done.value(), 1);
  EXPECT_TRUE(later->Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(later->why.message(), "the map failed");

  const auto other = MakeQueue(2);
  const auto waits = Later(*other);
  const auto waits_too = Later(*other);
  other->End(absl::OutOfRangeError("over"));
  EXPECT_TRUE(waits->Fails(absl::StatusCode::kOutOfRange));
  EXPECT_TRUE(waits_too->Fails(absl::StatusCode::kOutOfRange));
}

TEST(InfeedEnd, an_end_before_the_first_take_is_reported_to_all_replicas) {
  const auto queue = MakeQueue(2);
  queue->End(absl::OutOfRangeError("over"));
  for (int replica = 0; replica < 3; ++replica)
    EXPECT_TRUE(Later(*queue, replica, 3)->Fails(absl::StatusCode::kOutOfRange));
}

TEST(InfeedEnd, close_drops_ready_elements_and_fails_waiting_and_later_takes) {
  const auto queue = MakeQueue(2);
  auto element = std::make_shared<const int64_t>(7);
  const std::weak_ptr<const int64_t> alive = element;
  EXPECT_TRUE(queue->Push(std::move(element), kLargeBytes).ok());
  EXPECT_EQ(Taken(*queue, 0, 2), kNothing);
  const auto later = Later(*queue, 1, 2);
  queue->Close();
  EXPECT_TRUE(alive.expired());
  EXPECT_TRUE(later->Fails(absl::StatusCode::kCancelled));
  queue->End(absl::OutOfRangeError("over"));
  EXPECT_TRUE(Later(*queue, 0, 2)->Fails(absl::StatusCode::kCancelled));
  queue->Close();
  EXPECT_EQ(queue->ready(), 0);
}

// The element's destructor acquires a lock that another thread holds while it calls the queue.
TEST(InfeedEnd, close_drops_elements_outside_of_its_lock) {
  const auto queue = MakeQueue(1);
  int64_t ready_in_the_element = -1;
  Element element(new int64_t(0), [&](const int64_t* number) {
    delete number;
    ready_in_the_element = queue->ready();
  });
  EXPECT_TRUE(queue->Push(std::move(element), kLargeBytes).ok());
  queue->Close();
  EXPECT_EQ(ready_in_the_element, 0);
}

TEST(InfeedEnd, an_interrupt_fails_waiting_takes_and_keeps_the_elements) {
  const auto queue = MakeQueue(4);
  const auto later = Later(*queue);
  {
    const check::Interrupted now;
    queue->Interrupt();
    EXPECT_TRUE(later->Fails(absl::StatusCode::kCancelled));
    EXPECT_TRUE(Push(*queue, 0).ok());
    EXPECT_EQ(Failure(*queue).code(), absl::StatusCode::kCancelled);
    EXPECT_TRUE(Later(*queue)->Fails(absl::StatusCode::kCancelled));
  }
  EXPECT_EQ(Taken(*queue), 0);
}

TEST(InfeedEnd, a_wait_that_reaches_the_limit_fails_and_loses_no_element) {
  const auto queue = MakeQueue(2);
  {
    const WaitLimit limit(milliseconds(5));
    const auto start = std::chrono::steady_clock::now();
    const auto later = Later(*queue);
    EXPECT_TRUE(later->Fails(absl::StatusCode::kDeadlineExceeded));
    EXPECT_TRUE(absl::StrContains(later->why.message(), "5 ms")) << later->why;
    EXPECT_TRUE(std::chrono::steady_clock::now() - start >= milliseconds(5));
    EXPECT_EQ(queue->waiting(), 0);
  }
  EXPECT_TRUE(Push(*queue, 0).ok());
  EXPECT_EQ(Taken(*queue), 0);
}

TEST(InfeedEnd, the_limit_of_a_wait_fails_only_that_wait) {
  const auto queue = MakeQueue(2);
  const auto patient = Later(*queue);
  const auto hasty = [&] {
    const WaitLimit limit(milliseconds(1));
    return Later(*queue);
  }();
  EXPECT_TRUE(hasty->Fails(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(queue->waiting(), 1);
  EXPECT_TRUE(Push(*queue, 0).ok());
  EXPECT_TRUE(patient->Gets(0));
}

TEST(InfeedEnd, captures_of_a_delivery_are_released_afterwards) {
  const auto queue = MakeQueue(2);
  const WaitLimit limit(hours(1));  // The deadline is removed with its captures.
  const auto held = std::make_shared<int>(0);
  Count done;
  queue->TakeLater(0, 1, [&done, held](absl::Status, Element) { done.Add(); });
  EXPECT_TRUE(Push(*queue, 0).ok());
  EXPECT_TRUE(done.Await());
  EXPECT_TRUE(Becomes([&] { return held.use_count() == 1; }));
}

TEST(InfeedEnd, a_deleted_queue_fails_waiting_takes_and_its_deadlines_do_no_harm) {
  const WaitLimit limit(milliseconds(2));
  auto queue = MakeQueue(2);
  const auto later = Later(*queue);
  const auto other = Later(*queue);
  queue.reset();
  EXPECT_TRUE(later->done.Await());
  EXPECT_TRUE(other->done.Await());
  EXPECT_TRUE(later->why.code() == absl::StatusCode::kCancelled ||
              later->why.code() == absl::StatusCode::kDeadlineExceeded);
  Count past;
  Deadlines::Global().Add(std::chrono::steady_clock::now() + milliseconds(4), [&] { past.Add(); });
  EXPECT_TRUE(past.Await());
  EXPECT_EQ(later->done.value(), 1);
  EXPECT_EQ(other->done.value(), 1);
}

}  // namespace
