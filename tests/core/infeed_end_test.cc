// How an infeed makes its pump wait for room, and how waits end.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "tensorflow_ipu/kernels/queues/infeed.h"
#include "tests/core/check.h"
#include "tests/core/infeed_fixture.h"
#include "tests/core/threads.h"

namespace {

using check::Count;
using namespace check;
using std::chrono::hours;
using std::chrono::milliseconds;
using namespace tensorflow_ipu::core;

TEST(push_waits_at_the_depth_until_an_element_is_taken) {
  constexpr int kDepth = 2;
  const auto queue = MakeQueue(kDepth);
  Pusher pusher(*queue, 6);
  for (int i = 0; i < 4; ++i) {
    CHECK(pusher.pushed.Await(i + kDepth));
    CHECK(!pusher.pushed.Await(i + kDepth + 1, kMoment));
    CHECK_EQ(Taken(*queue), i);
  }
  CHECK(pusher.pushed.Await(6));
}

TEST(close_ends_a_push_that_waits_and_all_later_ones) {
  const auto queue = MakeQueue(1);
  CHECK(Push(*queue, 0).ok());
  Count ended;
  Threads threads;
  threads.Start([&] {
    CHECK(Push(*queue, 1).code == Code::kCancelled);
    ended.Add();
  });
  CHECK(!ended.Await(1, kMoment));
  queue->Close();
  CHECK(ended.Await());
  const Status after = Push(*queue, 2);
  CHECK(after.code == Code::kCancelled);
  CHECK(after.message.find("`queue`") != std::string::npos);
}

// Whether a queue of depth 1 ever holds two elements of this size when it runs full and then empty `rounds` times.
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

TEST(small_elements_get_more_room_than_the_depth_where_the_queue_runs_full_and_empty) {
  CHECK(GetsMoreRoom(4, kDeadline / kMoment));
  CHECK(!GetsMoreRoom(kLargeBytes, 5));
}

// The pump refills by halves; an incomplete row can be more than half, and nobody takes it.
TEST(a_pump_that_waits_goes_on_where_no_whole_row_is_left) {
  constexpr int64_t kReplicas = 4;
  const auto queue = MakeQueue(1);
  Pusher pusher(*queue, 2 * kReplicas);
  CHECK(Later(*queue, 0, kReplicas)->Gets(0));
  for (int64_t replica = 1; replica < kReplicas; ++replica) {
    CHECK(pusher.pushed.Await(kReplicas + replica));
    CHECK_EQ(Taken(*queue, replica, kReplicas), replica);
  }
  CHECK(pusher.pushed.Await(2 * kReplicas));
  for (int64_t replica = 0; replica < kReplicas; ++replica)
    CHECK_EQ(Taken(*queue, replica, kReplicas), kReplicas + replica);
}

TEST(a_wait_for_use_ends_with_the_first_take_or_with_the_queue) {
  for (const bool used : {true, false}) {
    const auto queue = MakeQueue(2);
    Count begun;
    Count ended;
    std::thread pump([&] {
      begun.Add();
      CHECK_EQ(queue->AwaitUse(), used);
      ended.Add();
    });
    CHECK(begun.Await());
    CHECK_EQ(ended.value(), 0);
    std::shared_ptr<Delivery> waits;
    if (used) {
      waits = Later(*queue);
    } else {
      queue->Close();
    }
    pump.join();
    CHECK_EQ(queue->AwaitUse(), used);
    if (used) {
      CHECK(Push(*queue, 7).ok());
      CHECK(waits->Gets(7));
    }
  }
}

TEST(the_end_leaves_what_is_ready_and_fails_those_who_wait_and_come_later) {
  const auto queue = MakeQueue(2);
  CHECK(Push(*queue, 0).ok());
  queue->End(Status{Code::kInvalidArgument, "the map failed"});
  CHECK_EQ(Taken(*queue), 0);
  const auto later = Later(*queue);
  CHECK_EQ(later->done.value(), 1);
  CHECK(later->Fails(Code::kInvalidArgument));
  CHECK_EQ(later->why.message, "the map failed");

  const auto other = MakeQueue(2);
  const auto waits = Later(*other);
  const auto waits_too = Later(*other);
  other->End(Status::OutOfRange("over"));
  CHECK(waits->Fails(Code::kOutOfRange));
  CHECK(waits_too->Fails(Code::kOutOfRange));
}

TEST(an_end_before_the_first_take_is_told_to_all_replicas) {
  const auto queue = MakeQueue(2);
  queue->End(Status::OutOfRange("over"));
  for (int replica = 0; replica < 3; ++replica) CHECK(Later(*queue, replica, 3)->Fails(Code::kOutOfRange));
}

TEST(close_drops_what_is_ready_and_fails_those_who_wait_and_come_later) {
  const auto queue = MakeQueue(2);
  auto element = std::make_shared<const int64_t>(7);
  const std::weak_ptr<const int64_t> alive = element;
  CHECK(queue->Push(std::move(element), kLargeBytes).ok());
  CHECK_EQ(Taken(*queue, 0, 2), kNothing);
  const auto later = Later(*queue, 1, 2);
  queue->Close();
  CHECK(alive.expired());
  CHECK(later->Fails(Code::kCancelled));
  queue->End(Status::OutOfRange("over"));
  CHECK(Later(*queue, 0, 2)->Fails(Code::kCancelled));
  queue->Close();
  CHECK_EQ(queue->ready(), 0);
}

// The element's destructor takes a lock that another thread holds while it calls the queue.
TEST(close_drops_elements_outside_of_its_lock) {
  const auto queue = MakeQueue(1);
  int64_t ready_in_the_element = -1;
  Element element(new int64_t(0), [&](const int64_t* number) {
    delete number;
    ready_in_the_element = queue->ready();
  });
  CHECK(queue->Push(std::move(element), kLargeBytes).ok());
  queue->Close();
  CHECK_EQ(ready_in_the_element, 0);
}

TEST(an_interrupt_fails_those_who_wait_and_keeps_the_elements) {
  const auto queue = MakeQueue(4);
  const auto later = Later(*queue);
  {
    const check::Interrupted now;
    queue->Interrupt();
    CHECK(later->Fails(Code::kCancelled));
    CHECK(Push(*queue, 0).ok());
    CHECK(Failure(*queue).code == Code::kCancelled);
    CHECK(Later(*queue)->Fails(Code::kCancelled));
  }
  CHECK_EQ(Taken(*queue), 0);
}

TEST(a_wait_that_reaches_the_limit_fails_and_loses_no_element) {
  const auto queue = MakeQueue(2);
  {
    const WaitLimit limit(milliseconds(5));
    const auto start = std::chrono::steady_clock::now();
    const auto later = Later(*queue);
    CHECK(later->Fails(Code::kDeadlineExceeded));
    CHECK(later->why.message.find("5 ms") != std::string::npos);
    CHECK(std::chrono::steady_clock::now() - start >= milliseconds(5));
    CHECK_EQ(queue->waiting(), 0);
  }
  CHECK(Push(*queue, 0).ok());
  CHECK_EQ(Taken(*queue), 0);
}

TEST(the_limit_of_a_wait_fails_that_wait_alone) {
  const auto queue = MakeQueue(2);
  const auto patient = Later(*queue);
  const auto hasty = [&] {
    const WaitLimit limit(milliseconds(1));
    return Later(*queue);
  }();
  CHECK(hasty->Fails(Code::kDeadlineExceeded));
  CHECK_EQ(queue->waiting(), 1);
  CHECK(Push(*queue, 0).ok());
  CHECK(patient->Gets(0));
}

TEST(what_is_delivered_holds_on_to_nothing_afterwards) {
  const auto queue = MakeQueue(2);
  const WaitLimit limit(hours(1));  // The deadline is removed with its captures.
  const auto held = std::make_shared<int>(0);
  Count done;
  queue->TakeLater(0, 1, [&done, held](Status, Element) { done.Add(); });
  CHECK(Push(*queue, 0).ok());
  CHECK(done.Await());
  CHECK(Becomes([&] { return held.use_count() == 1; }));
}

TEST(a_queue_that_goes_answers_those_who_wait_and_its_deadlines_do_no_harm) {
  const WaitLimit limit(milliseconds(2));
  auto queue = MakeQueue(2);
  const auto later = Later(*queue);
  const auto other = Later(*queue);
  queue.reset();
  CHECK(later->done.Await());
  CHECK(other->done.Await());
  CHECK(later->why.code == Code::kCancelled || later->why.code == Code::kDeadlineExceeded);
  Count past;
  Deadlines::Global().Add(std::chrono::steady_clock::now() + milliseconds(4), [&] { past.Add(); });
  CHECK(past.Await());
  CHECK_EQ(later->done.value(), 1);
  CHECK_EQ(other->done.value(), 1);
}

}  // namespace
