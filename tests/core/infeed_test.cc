// Tests an infeed with one caller at a time: order, rows of replicas, and waits.
#include "tensorflow_ipu/kernels/queues/infeed.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/core/infeed_fixture.h"
#include "tests/core/threads.h"

namespace {

using check::Count;
using namespace check;
using namespace tensorflow_ipu::core;

TEST(Infeed, elements_leave_in_the_order_of_their_arrival) {
  const auto queue = MakeQueue(3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Push(*queue, i).ok());
  EXPECT_EQ(queue->ready(), 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Taken(*queue), i);
  EXPECT_EQ(queue->ready(), 0);
  EXPECT_EQ(Taken(*queue), kNothing);
}

TEST(Infeed, passed_counts_taken_elements_and_their_waits) {
  const auto queue = MakeQueue(1000);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(Push(*queue, i, 8).ok());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Taken(*queue), i);
  EXPECT_EQ(queue->passed().elements, 3);  // The elements in the replica's cache do not count.
  EXPECT_EQ(queue->passed().bytes, 24);
  EXPECT_EQ(queue->passed().waits, 0);
  for (int i = 3; i < 20; ++i) EXPECT_EQ(Taken(*queue), i);
  const auto delivery = Later(*queue);
  EXPECT_TRUE(Push(*queue, 20, 8).ok());
  EXPECT_TRUE(delivery->Gets(20));
  EXPECT_EQ(queue->passed().elements, 21);
  EXPECT_EQ(queue->passed().waits, 1);
  EXPECT_TRUE(queue->passed().wait_ns > 0);
  EXPECT_TRUE(Push(*queue, 21, 8).ok());
  queue->Close();
  EXPECT_EQ(queue->passed().elements, 21);  // Dropped elements do not count.
}

TEST(Infeed, order_holds_while_the_queue_grows_with_elements_in_it) {
  const auto queue = MakeQueue(1000);
  int64_t pushed = 0;
  int64_t taken = 0;
  for (const int64_t ahead : {10, 3, 17, 16, 70, 1, 300}) {
    while (pushed < taken + ahead) EXPECT_TRUE(Push(*queue, pushed++).ok());
    while (taken < pushed - ahead / 2) EXPECT_EQ(Taken(*queue), taken++);
    EXPECT_EQ(queue->ready(), pushed - taken);
  }
  while (taken < pushed) EXPECT_EQ(Taken(*queue), taken++);
  EXPECT_EQ(Taken(*queue), kNothing);
}

TEST(Infeed, cached_elements_are_used_in_place_and_return_to_the_pump) {
  const auto queue = MakeQueue(4);
  std::vector<int64_t> used;
  const auto take = [&](int64_t replicas = 1) {
    return queue->TakeAtHand(0, replicas, [&](const Element& element) { used.push_back(*element); });
  };
  EXPECT_FALSE(take());
  for (int64_t i = 0; i < 4; ++i) EXPECT_TRUE(Push(*queue, i, 4).ok());
  EXPECT_FALSE(take());
  EXPECT_EQ(Taken(*queue), 0);  // All four elements are in the replica's cache now.
  EXPECT_TRUE(take());
  EXPECT_TRUE(take());
  EXPECT_FALSE(take(2));
  queue->Close();
  EXPECT_FALSE(take());
  EXPECT_TRUE(used == std::vector<int64_t>({1, 2}));
}

TEST(Infeed, memory_that_takes_leave_is_returned_to_the_pump) {
  const auto queue = MakeQueue(1000);
  int returned = 0;
  for (int i = 0; i < 1000; ++i) {
    Element element = std::make_shared<const int64_t>(i);
    EXPECT_TRUE(queue->Push(std::move(element), 1).ok());
    if (element != nullptr) {
      EXPECT_EQ(*element, -7);
      ++returned;
    }
    element = std::make_shared<const int64_t>(-7);
    absl::Status why;
    EXPECT_EQ(queue->Take(0, 1, &element, &why), Queue::Took::kElement);
    EXPECT_EQ(*element, i);
  }
  EXPECT_TRUE(returned > 900);
}

TEST(Infeed, elements_in_the_cache_of_a_replica_count_as_ready_and_are_dropped_with_the_queue) {
  const auto queue = MakeQueue(100);
  auto element = std::make_shared<const int64_t>(7);
  const std::weak_ptr<const int64_t> alive = element;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Push(*queue, i, 1).ok());
  EXPECT_TRUE(queue->Push(std::move(element), 1).ok());
  EXPECT_EQ(Taken(*queue), 0);
  EXPECT_EQ(queue->ready(), 3);
  EXPECT_EQ(Later(*queue)->done.value(), 1);
  EXPECT_EQ(queue->ready(), 2);
  queue->Close();
  EXPECT_EQ(queue->ready(), 0);
  EXPECT_TRUE(alive.expired());
  EXPECT_EQ(Failure(*queue).code(), absl::StatusCode::kCancelled);
}

// Replicas take batches, and replicas that share an element take it at different times.
TEST(Infeed, a_shared_element_is_ready_until_all_of_its_replicas_took_it) {
  const auto queue = std::make_shared<Queue>("queue", 100, Grouping{2, false});
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(Push(*queue, i, 1).ok());
  for (const int i : {0, 2}) EXPECT_EQ(Taken(*queue, 0, 4), i);
  EXPECT_EQ(queue->ready(), 8);
  EXPECT_EQ(Taken(*queue, 1, 4), 0);
  EXPECT_EQ(queue->ready(), 7);
  for (int replica = 2; replica < 4; ++replica) EXPECT_EQ(Taken(*queue, replica, 4), 1);
  EXPECT_EQ(queue->ready(), 6);
}

TEST(Infeed, replicas_with_cached_elements_are_aligned_to_one_row) {
  const auto queue = MakeQueue(100);
  EXPECT_EQ(Taken(*queue, 0, 2), kNothing);
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(Push(*queue, i, 1).ok());
  for (const int i : {0, 2, 4}) EXPECT_EQ(Taken(*queue, 0, 2), i);
  EXPECT_EQ(Taken(*queue, 1, 2), 1);
  queue->Align();
  EXPECT_EQ(Taken(*queue, 0, 2), 6);
  EXPECT_EQ(Taken(*queue, 1, 2), 7);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(Taken(*queue, 1, 2), 9 + 2 * i);
  queue->Align();
  EXPECT_EQ(Taken(*queue, 0, 2), 38);
  EXPECT_EQ(Taken(*queue, 1, 2), 39);
}

TEST(Infeed, the_depth_is_that_of_a_replica_once_replicas_are_known) {
  const auto queue = MakeQueue(2);
  Pusher pusher(*queue, 8);
  EXPECT_TRUE(pusher.pushed.Await(2));
  EXPECT_FALSE(pusher.pushed.Await(3, kMoment));
  const auto later = Later(*queue, 0, 4);  // The row is incomplete, but its width is known now.
  EXPECT_TRUE(pusher.pushed.Await(8));
  EXPECT_TRUE(later->Gets(0));
}

TEST(Infeed, replicas_get_the_elements_in_turn) {
  const auto queue = MakeQueue(8);
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(Push(*queue, i).ok());
  EXPECT_EQ(Taken(*queue, 2, 3), 2);
  EXPECT_EQ(Taken(*queue, 0, 3), 0);
  EXPECT_EQ(Taken(*queue, 1, 3), 1);
  EXPECT_EQ(Taken(*queue, 0, 3), 3);
  EXPECT_EQ(Taken(*queue, 1, 3), 4);
  EXPECT_EQ(Taken(*queue, 2, 3), 5);
}

TEST(Infeed, a_replica_may_run_ahead_by_the_depth_and_the_others_still_get_their_elements) {
  const auto queue = MakeQueue(2);
  Pusher pusher(*queue, 8);
  EXPECT_TRUE(pusher.pushed.Await(2));
  EXPECT_EQ(Taken(*queue, 1, 2), 1);
  EXPECT_TRUE(pusher.pushed.Await(4));
  EXPECT_EQ(Taken(*queue, 1, 2), 3);
  EXPECT_EQ(Taken(*queue, 1, 2), kNothing);
  EXPECT_EQ(queue->ready(), 2);
  const auto later = Later(*queue, 1, 2);
  EXPECT_FALSE(later->done.Await(1, kMoment));
  EXPECT_EQ(Taken(*queue, 0, 2), 0);
  EXPECT_TRUE(later->Gets(5));
  EXPECT_EQ(Taken(*queue, 0, 2), 2);
  EXPECT_EQ(Taken(*queue, 0, 2), 4);
  EXPECT_TRUE(pusher.pushed.Await(8));
  EXPECT_EQ(Taken(*queue, 0, 2), 6);
  EXPECT_EQ(Taken(*queue, 1, 2), 7);
}

TEST(Infeed, no_replica_gets_its_element_before_the_row_is_complete) {
  const auto queue = MakeQueue(4);
  EXPECT_TRUE(Push(*queue, 0).ok());
  EXPECT_EQ(Taken(*queue, 0, 2), kNothing);
  const auto first = Later(*queue, 0, 2);
  const auto second = Later(*queue, 1, 2);
  EXPECT_EQ(queue->waiting(), 2);
  EXPECT_TRUE(Push(*queue, 1).ok());
  EXPECT_TRUE(first->Gets(0));
  EXPECT_TRUE(second->Gets(1));
  EXPECT_EQ(queue->waiting(), 0);
}

TEST(Infeed, an_incomplete_last_row_reaches_no_replica) {
  const auto queue = MakeQueue(4);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Push(*queue, i).ok());
  EXPECT_EQ(Taken(*queue, 0, 2), 0);
  const auto later = Later(*queue, 0, 2);
  queue->End(absl::OutOfRangeError("over"));
  EXPECT_TRUE(later->Fails(absl::StatusCode::kOutOfRange));
  EXPECT_EQ(Taken(*queue, 1, 2), 1);
  const absl::Status why = Failure(*queue, 1, 2);
  EXPECT_EQ(why.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(why.message(), "over");
}

TEST(Infeed, a_program_of_another_number_of_replicas_is_rejected) {
  const auto queue = MakeQueue(4);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(Push(*queue, i).ok());
  EXPECT_EQ(Taken(*queue, 0, 2), 0);
  const absl::Status why = Failure(*queue, 0, 3);
  EXPECT_EQ(why.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(why.message(), "2 replicas")) << why;
  EXPECT_TRUE(Later(*queue, 0, 1)->Fails(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(Taken(*queue, 1, 2), 1);
}

TEST(Infeed, take_later_delivers_a_ready_element_at_once_and_on_this_thread) {
  const auto queue = MakeQueue(1);
  EXPECT_TRUE(Push(*queue, 5).ok());
  const auto later = Later(*queue);
  EXPECT_EQ(later->done.value(), 1);
  EXPECT_TRUE(later->Gets(5));
  EXPECT_EQ(later->thread, std::this_thread::get_id());
}

TEST(Infeed, take_later_delivers_a_later_element_on_a_thread_that_neither_takes_nor_pushes) {
  const auto queue = MakeQueue(1);
  const auto later = Later(*queue);
  EXPECT_EQ(later->done.value(), 0);
  EXPECT_EQ(queue->waiting(), 1);
  EXPECT_TRUE(Push(*queue, 5).ok());
  EXPECT_TRUE(later->Gets(5));
  EXPECT_TRUE(later->thread != std::this_thread::get_id());
}

TEST(Infeed, waiting_takes_of_one_replica_are_served_in_order) {
  const auto queue = MakeQueue(3);
  const auto first = Later(*queue);
  const auto second = Later(*queue);
  EXPECT_TRUE(Push(*queue, 0).ok());
  EXPECT_TRUE(first->Gets(0));
  EXPECT_EQ(Taken(*queue), kNothing);
  EXPECT_TRUE(Push(*queue, 1).ok());
  EXPECT_TRUE(second->Gets(1));
  EXPECT_TRUE(Push(*queue, 2).ok());
  EXPECT_EQ(Taken(*queue), 2);
}

TEST(Infeed, a_delivery_may_use_the_queue) {
  const auto queue = MakeQueue(1);
  Count done;
  queue->TakeLater(0, 1, [&](absl::Status, Element) {
    queue->TakeLater(0, 1, [&](absl::Status why, Element) {
      EXPECT_EQ(why.code(), absl::StatusCode::kCancelled);
      EXPECT_EQ(queue->waiting(), 0);
      done.Add();
    });
    queue->Close();
    done.Add();
  });
  EXPECT_TRUE(Push(*queue, 0).ok());
  EXPECT_TRUE(done.Await(2));  // The thread that closes the queue may return last.
}

TEST(Infeed, a_spin_sees_an_element_that_arrives_during_it) {
  const auto queue = MakeQueue(2);
  EXPECT_EQ(Taken(*queue), kNothing);
  EXPECT_FALSE(queue->SpinForNext(0));
  EXPECT_TRUE(Push(*queue, 0).ok());
  EXPECT_TRUE(queue->SpinForNext(0));
  EXPECT_EQ(Taken(*queue), 0);
  EXPECT_FALSE(queue->SpinForNext(0));
  queue->Close();
  EXPECT_TRUE(queue->SpinForNext(0));
}

TEST(Infeed, a_program_of_several_replicas_does_not_spin) {
  const auto queue = MakeQueue(2);
  EXPECT_EQ(Taken(*queue, 0, 2), kNothing);
  EXPECT_TRUE(Push(*queue, 0).ok());
  EXPECT_TRUE(Push(*queue, 1).ok());
  EXPECT_FALSE(queue->SpinForNext(0));
}

TEST(Infeed, replicas_that_lag_skip_to_the_row_of_the_furthest) {
  const auto queue = MakeQueue(8);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(Push(*queue, i).ok());
  for (const int i : {0, 2}) EXPECT_EQ(Taken(*queue, 0, 2), i);
  EXPECT_EQ(Taken(*queue, 1, 2), 1);
  queue->Align();
  for (const int64_t replica : {0, 1}) EXPECT_EQ(Taken(*queue, replica, 2), 4 + replica);
}

// A row has one element for each group.
TEST(Infeed, replicas_of_a_group_share_an_element) {
  struct Case {
    Grouping sharing;
    std::vector<int64_t> groups;  // By replica.
  };
  const Case cases[] = {{{2, false}, {0, 0, 1, 1}}, {{2, true}, {0, 1, 0, 1}}, {{0, false}, {0, 0, 0}}};
  for (const auto& [sharing, groups] : cases) {
    const auto queue = std::make_shared<Queue>("queue", 8, sharing);
    const auto replicas = static_cast<int64_t>(groups.size());
    const int64_t width = groups.back() + 1;
    for (int64_t i = 0; i < 2 * width; ++i) EXPECT_TRUE(Push(*queue, i).ok());
    for (int64_t replica = replicas - 1; replica >= 0; --replica) {
      for (int64_t row = 0; row < 2; ++row) {
        EXPECT_EQ(Taken(*queue, replica, replicas), width * row + groups[static_cast<std::size_t>(replica)]);
      }
    }
    EXPECT_EQ(Taken(*queue, 0, replicas), kNothing);
    EXPECT_EQ(queue->ready(), 0);
    const auto first = Later(*queue, 0, replicas);
    const auto last = Later(*queue, replicas - 1, replicas);
    for (int64_t i = 0; i < width; ++i) EXPECT_TRUE(Push(*queue, 10 + i).ok());
    EXPECT_TRUE(first->Gets(10));
    EXPECT_TRUE(last->Gets(10 + groups.back()));
  }
}

TEST(Infeed, groups_that_do_not_divide_the_replicas_are_rejected) {
  const auto queue = std::make_shared<Queue>("queue", 8, Grouping{3, false});
  EXPECT_TRUE(Push(*queue, 1).ok());
  EXPECT_EQ(Failure(*queue, 0, 4).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
