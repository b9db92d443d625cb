// Tests turns: one at a time, in order, on any thread.
#include "tensorflow_ipu/kernels/support/turns.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/core/threads.h"

namespace {

using check::Count;
using tensorflow_ipu::core::Turns;

const absl::Status kOccupied{absl::StatusCode::kFailedPrecondition, "occupied"};

// Requests that record which of them began, and how others failed.
struct Requests {
  Turns turns{kOccupied};
  std::vector<int> begun;
  std::vector<std::string> failed;

  int64_t Request(int number, bool lasting = false) {
    return turns.Request(
        [this, number](const absl::Status& status) {
          if (status.ok()) {
            begun.push_back(number);
          } else {
            failed.emplace_back(status.message());
          }
        },
        lasting);
  }
};

TEST(Turns, the_first_turn_begins_at_once_on_the_thread_of_the_caller) {
  Turns turns(kOccupied);
  std::thread::id thread;
  turns.Request([&](const absl::Status& status) {
    EXPECT_TRUE(status.ok());
    thread = std::this_thread::get_id();
  });
  EXPECT_EQ(thread, std::this_thread::get_id());
  EXPECT_FALSE(turns.TryBegin());
  turns.End();
  EXPECT_TRUE(turns.TryBegin());
}

TEST(Turns, turns_begin_when_preceding_ones_end_in_the_order_of_the_requests) {
  Requests requests;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 10; ++i) requests.Request(i);
    EXPECT_EQ(requests.begun.size(), std::size_t{1});
    for (int i = 1; i <= 10; ++i) {
      requests.turns.End();
      EXPECT_EQ(requests.begun.size(), static_cast<std::size_t>(std::min(i + 1, 10)));
    }
    EXPECT_TRUE(requests.begun == std::vector<int>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
    requests.begun.clear();
  }
}

TEST(Turns, each_turn_has_a_number_while_it_lasts) {
  Requests requests;
  EXPECT_EQ(requests.turns.current(), 0);
  EXPECT_TRUE(requests.turns.TryBegin());
  requests.Request(0);
  const int64_t first = requests.turns.current();
  EXPECT_TRUE(first != 0);
  requests.turns.End();
  const int64_t second = requests.turns.current();
  EXPECT_TRUE(second != 0 && second != first);
  requests.turns.End();
  EXPECT_EQ(requests.turns.current(), 0);
}

TEST(Turns, a_turn_that_ends_as_it_begins_is_followed_by_the_next) {
  Turns turns(kOccupied);
  std::vector<int> order;
  EXPECT_TRUE(turns.TryBegin());
  for (int i = 0; i < 5; ++i) {
    turns.Request([&, i](const absl::Status&) {
      order.push_back(i);
      turns.End();
    });
  }
  EXPECT_TRUE(order.empty());
  turns.End();
  EXPECT_TRUE(order == std::vector<int>({0, 1, 2, 3, 4}));
}

TEST(Turns, a_user_may_request_another_turn_which_follows_waiting_ones) {
  Requests requests;
  EXPECT_TRUE(requests.turns.TryBegin());
  requests.Request(0);
  requests.Request(1);
  requests.turns.End();
  requests.Request(2);
  requests.turns.End();
  requests.turns.End();
  EXPECT_TRUE(requests.begun == std::vector<int>({0, 1, 2}));
}

TEST(Turns, captures_of_a_callback_are_released_after_the_call) {
  Turns turns(kOccupied);
  const auto held = std::make_shared<int>(0);
  EXPECT_TRUE(turns.TryBegin());
  turns.Request([held](const absl::Status&) {});
  EXPECT_EQ(held.use_count(), 2);
  turns.End();
  EXPECT_EQ(held.use_count(), 1);
}

TEST(Turns, a_request_that_is_cancelled_fails_and_the_others_keep_their_order) {
  Requests requests;
  EXPECT_TRUE(requests.turns.TryBegin());
  requests.Request(0);
  const int64_t second = requests.Request(1);
  requests.Request(2);
  requests.turns.Cancel(second, absl::CancelledError("cancelled"));
  EXPECT_TRUE(requests.failed == std::vector<std::string>({"cancelled"}));
  requests.turns.Cancel(second, absl::CancelledError("again"));
  requests.turns.End();
  requests.turns.End();
  EXPECT_TRUE(requests.begun == std::vector<int>({0, 2}));
  EXPECT_EQ(requests.failed.size(), std::size_t{1});
}

TEST(Turns, an_interrupt_fails_waiting_requests_and_the_active_turn_continues) {
  Requests requests;
  for (int i = 0; i < 3; ++i) requests.Request(i);
  requests.turns.Interrupt();
  EXPECT_TRUE(requests.begun == std::vector<int>({0}));
  EXPECT_EQ(requests.failed.size(), std::size_t{2});
  EXPECT_FALSE(requests.turns.TryBegin());
  requests.turns.End();
  EXPECT_TRUE(requests.turns.TryBegin());
}

TEST(Turns, after_an_interrupt_no_request_waits) {
  Requests requests;
  requests.Request(0);
  {
    const check::Interrupted interrupted;
    requests.Request(1);
    EXPECT_EQ(requests.failed.size(), std::size_t{1});
    requests.turns.End();
    requests.Request(2);  // It need not wait.
  }
  requests.turns.End();
  EXPECT_TRUE(requests.begun == std::vector<int>({0, 2}));
}

TEST(Turns, no_request_waits_for_the_end_of_a_lasting_turn) {
  Requests requests;
  requests.Request(0);
  requests.Request(1, /*lasting=*/true);
  requests.Request(2);
  EXPECT_TRUE(requests.failed.empty());
  requests.turns.End();
  EXPECT_TRUE(requests.begun == std::vector<int>({0, 1}));
  EXPECT_TRUE(requests.failed == std::vector<std::string>({"occupied"}));
  requests.Request(3);
  EXPECT_EQ(requests.failed.size(), std::size_t{2});
  requests.turns.End();
  EXPECT_TRUE(requests.turns.TryBegin(/*lasting=*/true));
  requests.Request(4);
  EXPECT_EQ(requests.failed.size(), std::size_t{3});
  requests.turns.End();
  requests.Request(5);
  EXPECT_TRUE(requests.begun == std::vector<int>({0, 1, 5}));
}

TEST(Turns, turns_of_many_threads_never_overlap_and_all_begin) {
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  const auto turns = std::make_shared<Turns>(kOccupied);
  Count done;
  std::atomic<int> active{0};
  int unguarded = 0;  // For ThreadSanitizer: the turns must order the accesses.
  check::OnThreads(kThreads, [&](int) {
    for (int i = 0; i < kEach; ++i) {
      turns->Request([&](const absl::Status& status) {
        EXPECT_TRUE(status.ok());
        EXPECT_EQ(active.fetch_add(1), 0);
        ++unguarded;
        active.fetch_sub(1);
        done.Add();
        if (done.value() % 2 == 0) {
          turns->End();
        } else {
          std::thread([turns] { turns->End(); }).detach();
        }
      });
    }
  });
  EXPECT_TRUE(done.Await(kThreads * kEach));
  // The last detached End may still run; this turn follows it.
  Count last;
  turns->Request([&](const absl::Status&) { last.Add(); });
  EXPECT_TRUE(last.Await());
  EXPECT_EQ(unguarded, kThreads * kEach);
}

}  // namespace
