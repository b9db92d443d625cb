// An infeed with one caller at a time: order, rows of replicas, and waits.
#include "tensorflow_ipu/kernels/queues/infeed.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/core/check.h"
#include "tests/core/infeed_fixture.h"
#include "tests/core/threads.h"

namespace {

using check::Count;
using namespace check;
using namespace tensorflow_ipu::core;

TEST(elements_leave_in_the_order_in_which_they_came) {
  const auto queue = MakeQueue(3);
  for (int i = 0; i < 3; ++i) CHECK(Push(*queue, i).ok());
  CHECK_EQ(queue->ready(), 3);
  for (int i = 0; i < 3; ++i) CHECK_EQ(Taken(*queue), i);
  CHECK_EQ(queue->ready(), 0);
  CHECK_EQ(Taken(*queue), kNothing);
}

TEST(what_passed_is_what_was_taken_and_how_long_it_was_waited_for) {
  const auto queue = MakeQueue(1000);
  for (int i = 0; i < 20; ++i) CHECK(Push(*queue, i, 8).ok());
  for (int i = 0; i < 3; ++i) CHECK_EQ(Taken(*queue), i);
  CHECK_EQ(queue->passed().elements, 3);  // And not what the replica has in its cache.
  CHECK_EQ(queue->passed().bytes, 24);
  CHECK_EQ(queue->passed().waits, 0);
  for (int i = 3; i < 20; ++i) CHECK_EQ(Taken(*queue), i);
  const auto delivery = Later(*queue);
  CHECK(Push(*queue, 20, 8).ok());
  CHECK(delivery->Gets(20));
  CHECK_EQ(queue->passed().elements, 21);
  CHECK_EQ(queue->passed().waits, 1);
  CHECK(queue->passed().wait_ns > 0);
  CHECK(Push(*queue, 21, 8).ok());
  queue->Close();
  CHECK_EQ(queue->passed().elements, 21);  // Dropped elements have not passed.
}

TEST(order_holds_while_the_queue_grows_with_elements_in_it) {
  const auto queue = MakeQueue(1000);
  int64_t pushed = 0;
  int64_t taken = 0;
  for (const int64_t ahead : {10, 3, 17, 16, 70, 1, 300}) {
    while (pushed < taken + ahead) CHECK(Push(*queue, pushed++).ok());
    while (taken < pushed - ahead / 2) CHECK_EQ(Taken(*queue), taken++);
    CHECK_EQ(queue->ready(), pushed - taken);
  }
  while (taken < pushed) CHECK_EQ(Taken(*queue), taken++);
  CHECK_EQ(Taken(*queue), kNothing);
}

TEST(what_is_at_hand_is_used_where_it_lies_and_goes_back_to_the_pump) {
  const auto queue = MakeQueue(4);
  std::vector<int64_t> used;
  const auto take = [&](int64_t replicas = 1) {
    return queue->TakeAtHand(0, replicas, [&](const Element& element) { used.push_back(*element); });
  };
  CHECK(!take());
  for (int64_t i = 0; i < 4; ++i) CHECK(Push(*queue, i, 4).ok());
  CHECK(!take());
  CHECK_EQ(Taken(*queue), 0);  // All four are in the replica's cache now.
  CHECK(take());
  CHECK(take());
  CHECK(!take(2));
  queue->Close();
  CHECK(!take());
  CHECK(used == std::vector<int64_t>({1, 2}));
}

TEST(what_takes_leave_in_the_place_of_elements_goes_to_the_pump) {
  const auto queue = MakeQueue(1000);
  int returned = 0;
  for (int i = 0; i < 1000; ++i) {
    Element element = std::make_shared<const int64_t>(i);
    CHECK(queue->Push(std::move(element), 1).ok());
    if (element != nullptr) {
      CHECK_EQ(*element, -7);
      ++returned;
    }
    element = std::make_shared<const int64_t>(-7);
    Status why;
    CHECK(queue->Take(0, 1, &element, &why) == Queue::Took::kElement);
    CHECK_EQ(*element, i);
  }
  CHECK(returned > 900);
}

TEST(elements_that_a_replica_was_dealt_count_as_ready_and_go_with_the_queue) {
  const auto queue = MakeQueue(100);
  auto element = std::make_shared<const int64_t>(7);
  const std::weak_ptr<const int64_t> alive = element;
  for (int i = 0; i < 3; ++i) CHECK(Push(*queue, i, 1).ok());
  CHECK(queue->Push(std::move(element), 1).ok());
  CHECK_EQ(Taken(*queue), 0);
  CHECK_EQ(queue->ready(), 3);
  CHECK(Later(*queue)->done.value() == 1);
  CHECK_EQ(queue->ready(), 2);
  queue->Close();
  CHECK_EQ(queue->ready(), 0);
  CHECK(alive.expired());
  CHECK(Failure(*queue).code == Code::kCancelled);
}

// Replicas take batches, and those that share take each element at different times.
TEST(an_element_that_replicas_share_is_ready_until_all_of_them_took_it) {
  const auto queue = std::make_shared<Queue>("queue", 100, Grouping{2, false});
  for (int i = 0; i < 8; ++i) CHECK(Push(*queue, i, 1).ok());
  for (const int i : {0, 2}) CHECK_EQ(Taken(*queue, 0, 4), i);
  CHECK_EQ(queue->ready(), 8);
  CHECK_EQ(Taken(*queue, 1, 4), 0);
  CHECK_EQ(queue->ready(), 7);
  for (int replica = 2; replica < 4; ++replica) CHECK_EQ(Taken(*queue, replica, 4), 1);
  CHECK_EQ(queue->ready(), 6);
}

TEST(replicas_that_were_dealt_ahead_are_brought_to_one_row) {
  const auto queue = MakeQueue(100);
  CHECK_EQ(Taken(*queue, 0, 2), kNothing);
  for (int i = 0; i < 40; ++i) CHECK(Push(*queue, i, 1).ok());
  for (const int i : {0, 2, 4}) CHECK_EQ(Taken(*queue, 0, 2), i);
  CHECK_EQ(Taken(*queue, 1, 2), 1);
  queue->Align();
  CHECK_EQ(Taken(*queue, 0, 2), 6);
  CHECK_EQ(Taken(*queue, 1, 2), 7);
  for (int i = 0; i < 15; ++i) CHECK_EQ(Taken(*queue, 1, 2), 9 + 2 * i);
  queue->Align();
  CHECK_EQ(Taken(*queue, 0, 2), 38);
  CHECK_EQ(Taken(*queue, 1, 2), 39);
}

TEST(the_depth_is_that_of_a_replica_once_replicas_are_known) {
  const auto queue = MakeQueue(2);
  Pusher pusher(*queue, 8);
  CHECK(pusher.pushed.Await(2));
  CHECK(!pusher.pushed.Await(3, kMoment));
  const auto later = Later(*queue, 0, 4);  // The row is incomplete, but its width is known now.
  CHECK(pusher.pushed.Await(8));
  CHECK(later->Gets(0));
}

TEST(replicas_get_the_elements_in_turn) {
  const auto queue = MakeQueue(8);
  for (int i = 0; i < 6; ++i) CHECK(Push(*queue, i).ok());
  CHECK_EQ(Taken(*queue, 2, 3), 2);
  CHECK_EQ(Taken(*queue, 0, 3), 0);
  CHECK_EQ(Taken(*queue, 1, 3), 1);
  CHECK_EQ(Taken(*queue, 0, 3), 3);
  CHECK_EQ(Taken(*queue, 1, 3), 4);
  CHECK_EQ(Taken(*queue, 2, 3), 5);
}

TEST(a_replica_may_run_ahead_by_the_depth_and_the_others_still_get_theirs) {
  const auto queue = MakeQueue(2);
  Pusher pusher(*queue, 8);
  CHECK(pusher.pushed.Await(2));
  CHECK_EQ(Taken(*queue, 1, 2), 1);
  CHECK(pusher.pushed.Await(4));
  CHECK_EQ(Taken(*queue, 1, 2), 3);
  CHECK_EQ(Taken(*queue, 1, 2), kNothing);
  CHECK_EQ(queue->ready(), 2);
  const auto later = Later(*queue, 1, 2);
  CHECK(!later->done.Await(1, kMoment));
  CHECK_EQ(Taken(*queue, 0, 2), 0);
  CHECK(later->Gets(5));
  CHECK_EQ(Taken(*queue, 0, 2), 2);
  CHECK_EQ(Taken(*queue, 0, 2), 4);
  CHECK(pusher.pushed.Await(8));
  CHECK_EQ(Taken(*queue, 0, 2), 6);
  CHECK_EQ(Taken(*queue, 1, 2), 7);
}

TEST(no_replica_gets_its_element_before_the_row_is_whole) {
  const auto queue = MakeQueue(4);
  CHECK(Push(*queue, 0).ok());
  CHECK_EQ(Taken(*queue, 0, 2), kNothing);
  const auto first = Later(*queue, 0, 2);
  const auto second = Later(*queue, 1, 2);
  CHECK_EQ(queue->waiting(), 2);
  CHECK(Push(*queue, 1).ok());
  CHECK(first->Gets(0));
  CHECK(second->Gets(1));
  CHECK_EQ(queue->waiting(), 0);
}

TEST(an_incomplete_last_row_reaches_no_replica) {
  const auto queue = MakeQueue(4);
  for (int i = 0; i < 3; ++i) CHECK(Push(*queue, i).ok());
  CHECK_EQ(Taken(*queue, 0, 2), 0);
  const auto later = Later(*queue, 0, 2);
  queue->End(Status::OutOfRange("over"));
  CHECK(later->Fails(Code::kOutOfRange));
  CHECK_EQ(Taken(*queue, 1, 2), 1);
  const Status why = Failure(*queue, 1, 2);
  CHECK(why.code == Code::kOutOfRange);
  CHECK_EQ(why.message, "over");
}

TEST(a_program_of_another_number_of_replicas_is_refused) {
  const auto queue = MakeQueue(4);
  for (int i = 0; i < 2; ++i) CHECK(Push(*queue, i).ok());
  CHECK_EQ(Taken(*queue, 0, 2), 0);
  const Status why = Failure(*queue, 0, 3);
  CHECK(why.code == Code::kFailedPrecondition);
  CHECK(why.message.find("2 replicas") != std::string::npos);
  CHECK(Later(*queue, 0, 1)->Fails(Code::kFailedPrecondition));
  CHECK_EQ(Taken(*queue, 1, 2), 1);
}

TEST(take_later_delivers_what_is_ready_at_once_and_on_this_thread) {
  const auto queue = MakeQueue(1);
  CHECK(Push(*queue, 5).ok());
  const auto later = Later(*queue);
  CHECK_EQ(later->done.value(), 1);
  CHECK(later->Gets(5));
  CHECK(later->thread == std::this_thread::get_id());
}

TEST(take_later_delivers_what_comes_on_a_thread_that_neither_takes_nor_pushes) {
  const auto queue = MakeQueue(1);
  const auto later = Later(*queue);
  CHECK_EQ(later->done.value(), 0);
  CHECK_EQ(queue->waiting(), 1);
  CHECK(Push(*queue, 5).ok());
  CHECK(later->Gets(5));
  CHECK(later->thread != std::this_thread::get_id());
}

TEST(those_who_wait_for_one_replica_are_served_in_turn_and_nobody_overtakes) {
  const auto queue = MakeQueue(3);
  const auto first = Later(*queue);
  const auto second = Later(*queue);
  CHECK(Push(*queue, 0).ok());
  CHECK(first->Gets(0));
  CHECK_EQ(Taken(*queue), kNothing);
  CHECK(Push(*queue, 1).ok());
  CHECK(second->Gets(1));
  CHECK(Push(*queue, 2).ok());
  CHECK_EQ(Taken(*queue), 2);
}

TEST(a_delivery_may_use_the_queue) {
  const auto queue = MakeQueue(1);
  Count done;
  queue->TakeLater(0, 1, [&](Status, Element) {
    queue->TakeLater(0, 1, [&](Status why, Element) {
      CHECK(why.code == Code::kCancelled);
      CHECK_EQ(queue->waiting(), 0);
      done.Add();
    });
    queue->Close();
    done.Add();
  });
  CHECK(Push(*queue, 0).ok());
  CHECK(done.Await(2));  // The thread that closes the queue may return last.
}

TEST(a_spin_sees_the_element_that_comes_meanwhile) {
  const auto queue = MakeQueue(2);
  CHECK_EQ(Taken(*queue), kNothing);
  CHECK(!queue->SpinForNext(0));
  CHECK(Push(*queue, 0).ok());
  CHECK(queue->SpinForNext(0));
  CHECK_EQ(Taken(*queue), 0);
  CHECK(!queue->SpinForNext(0));
  queue->Close();
  CHECK(queue->SpinForNext(0));
}

TEST(a_program_of_several_replicas_does_not_spin) {
  const auto queue = MakeQueue(2);
  CHECK_EQ(Taken(*queue, 0, 2), kNothing);
  CHECK(Push(*queue, 0).ok());
  CHECK(Push(*queue, 1).ok());
  CHECK(!queue->SpinForNext(0));
}

TEST(replicas_that_lag_skip_to_the_row_of_the_furthest) {
  const auto queue = MakeQueue(8);
  for (int i = 0; i < 8; ++i) CHECK(Push(*queue, i).ok());
  for (const int i : {0, 2}) CHECK_EQ(Taken(*queue, 0, 2), i);
  CHECK_EQ(Taken(*queue, 1, 2), 1);
  queue->Align();
  for (const int64_t replica : {0, 1}) CHECK_EQ(Taken(*queue, replica, 2), 4 + replica);
}

// A row has an element for each group.
TEST(replicas_of_a_group_share_an_element) {
  struct Case {
    Grouping sharing;
    std::vector<int64_t> groups;  // By replica.
  };
  const Case cases[] = {{{2, false}, {0, 0, 1, 1}}, {{2, true}, {0, 1, 0, 1}}, {{0, false}, {0, 0, 0}}};
  for (const auto& [sharing, groups] : cases) {
    const auto queue = std::make_shared<Queue>("queue", 8, sharing);
    const auto replicas = static_cast<int64_t>(groups.size());
    const int64_t width = groups.back() + 1;
    for (int64_t i = 0; i < 2 * width; ++i) Push(*queue, i);
    for (int64_t replica = replicas - 1; replica >= 0; --replica) {
      for (int64_t row = 0; row < 2; ++row) {
        CHECK_EQ(Taken(*queue, replica, replicas), width * row + groups[static_cast<std::size_t>(replica)]);
      }
    }
    CHECK_EQ(Taken(*queue, 0, replicas), kNothing);
    CHECK_EQ(queue->ready(), 0);
    const auto first = Later(*queue, 0, replicas);
    const auto last = Later(*queue, replicas - 1, replicas);
    for (int64_t i = 0; i < width; ++i) Push(*queue, 10 + i);
    CHECK(first->Gets(10));
    CHECK(last->Gets(10 + groups.back()));
  }
}

TEST(groups_that_do_not_divide_the_replicas_are_refused) {
  const auto queue = std::make_shared<Queue>("queue", 8, Grouping{3, false});
  Push(*queue, 1);
  CHECK(Failure(*queue, 0, 4).code == Code::kInvalidArgument);
}

}  // namespace
