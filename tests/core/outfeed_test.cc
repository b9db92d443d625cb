// Tests that an outfeed returns complete rows, each once and in order, independently of the pieces in which it stores
// them.
#include "tensorflow_ipu/kernels/queues/outfeed.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tensorflow_ipu/kernels/support/waiting.h"
#include "tests/core/threads.h"

namespace {

using check::Count;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using namespace tensorflow_ipu::core;

constexpr int64_t kLayout = 77;
constexpr nanoseconds kNoWait{0};

absl::Status Append(Outfeed& queue, int64_t number, int64_t replica = 0, int64_t replicas = 1,
                    int64_t layout = kLayout) {
  return queue.Append(replica, replicas, layout, {{&number, sizeof(number)}});
}

// Returns the numbers of one replica. A row has one number and `rest` more bytes.
std::vector<int64_t> Numbers(const Outfeed::Taken& taken, std::size_t replica = 0, std::size_t rest = 0) {
  std::vector<int64_t> numbers;
  for (const Rows& piece : taken.pieces.at(replica)) {
    EXPECT_TRUE(0 <= piece.begin && piece.begin < piece.end && piece.end <= piece.capacity);
    for (int64_t row = piece.begin; row < piece.end; ++row) {
      int64_t number;
      std::memcpy(&number, piece.data.get() + static_cast<std::size_t>(row) * (sizeof(number) + rest), sizeof(number));
      numbers.push_back(number);
    }
  }
  EXPECT_EQ(static_cast<int64_t>(numbers.size()), taken.count);
  return numbers;
}

std::vector<int64_t> Range(int64_t first, int64_t last) {
  std::vector<int64_t> numbers(static_cast<std::size_t>(last - first));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

TEST(Outfeed, passed_counts_appended_elements_whether_they_were_read_or_not) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Append(queue, i).ok());
  queue.Take(kNoWait);
  EXPECT_TRUE(Append(queue, 3).ok());
  EXPECT_EQ(queue.passed().elements, 4);
  EXPECT_EQ(queue.passed().bytes, 32);
}

// A regression: a thread keeps the queue that it used last, and so kept the memory of a deleted queue.
TEST(Outfeed, a_closed_queue_has_no_elements_and_takes_none) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Append(queue, i).ok());
  Outfeed::Taken taken = queue.Take(kNoWait, kLayout, 1);
  std::weak_ptr<std::byte[]> memory = taken.pieces[0][0].data;
  queue.Close();
  taken.pieces.clear();
  EXPECT_TRUE(memory.expired());
  EXPECT_EQ(queue.ready(), 0);
  EXPECT_EQ(queue.Take(kNoWait).count, 0);
  EXPECT_EQ(Append(queue, 3).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(queue.passed().elements, 3);
}

TEST(Outfeed, rows_that_are_put_back_into_a_closed_queue_are_dropped) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  EXPECT_TRUE(Append(queue, 0).ok());
  Outfeed::Taken taken = queue.Take(kNoWait);
  queue.Close();
  queue.PutBack(std::move(taken));
  EXPECT_EQ(queue.ready(), 0);
}

TEST(Outfeed, programs_of_another_number_of_replicas_may_enqueue_if_no_element_is_unread) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  EXPECT_TRUE(Append(queue, 1, 0, 2).ok());
  const absl::Status other = Append(queue, 2, 2, 3);
  EXPECT_TRUE(other.code() == absl::StatusCode::kFailedPrecondition &&
              other.message().find("2 replicas") != std::string::npos);
  EXPECT_EQ(queue.replicas(), 2);
  EXPECT_TRUE(Append(queue, 3, 1, 2).ok());
  EXPECT_EQ(Append(queue, 4, 0, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(queue.Take(kNoWait).replicas, 2);
  EXPECT_TRUE(Append(queue, 5, 0, 1).ok());
  const Outfeed::Taken alone = queue.Take(kNoWait);
  EXPECT_EQ(alone.replicas, 1);
  EXPECT_EQ(Numbers(alone), Range(5, 6));
  EXPECT_TRUE(Append(queue, 6, 2, 4).ok());
  EXPECT_EQ(queue.replicas(), 4);
}

TEST(Outfeed, the_last_element_is_replaced_by_a_program_of_another_number_of_replicas) {
  Outfeed queue("queue", Outfeed::Mode::kLast);
  EXPECT_TRUE(Append(queue, 1, 0, 2).ok());
  EXPECT_TRUE(Append(queue, 2, 1, 2).ok());
  EXPECT_TRUE(Append(queue, 3, 0, 1).ok());
  const Outfeed::Taken taken = queue.Take(kNoWait);
  EXPECT_EQ(taken.replicas, 1);
  EXPECT_EQ(Numbers(taken), Range(3, 4));
}

TEST(Outfeed, rows_are_returned_in_order_and_once) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  EXPECT_TRUE(queue.ready() == 0 && queue.replicas() == 0 && queue.layout() == 0);
  const Outfeed::Taken none = queue.Take(kNoWait);
  EXPECT_TRUE(none.count == 0 && none.replicas == 0 && none.pieces.empty());
  for (int64_t i = 0; i < 5; ++i) EXPECT_TRUE(Append(queue, i).ok());
  EXPECT_EQ(queue.ready(), 5);
  EXPECT_EQ(queue.replicas(), 1);
  EXPECT_EQ(queue.layout(), kLayout);
  const Outfeed::Taken taken = queue.Take(kNoWait);
  EXPECT_EQ(taken.layout, kLayout);
  EXPECT_EQ(taken.replicas, 1);
  EXPECT_EQ(Numbers(taken), Range(0, 5));
  EXPECT_EQ(queue.Take(kNoWait).count, 0);
  EXPECT_TRUE(Append(queue, 5).ok());
  EXPECT_EQ(Numbers(queue.Take(kNoWait)), Range(5, 6));
}

TEST(Outfeed, the_leaves_of_a_row_are_contiguous) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  for (char i = 0; i < 3; ++i) {
    const char first[3] = {i, i, i};
    const char second[2] = {static_cast<char>(10 + i), 'x'};
    EXPECT_TRUE(queue.Append(0, 1, kLayout, {{first, sizeof(first)}, {second, sizeof(second)}}).ok());
  }
  const Outfeed::Taken taken = queue.Take(kNoWait);
  ASSERT_EQ(taken.pieces.size(), 1);
  std::string bytes;
  for (const Rows& rows : taken.pieces[0]) {
    bytes.append(reinterpret_cast<const char*>(rows.data.get()) + rows.begin * 5, (rows.end - rows.begin) * 5);
  }
  EXPECT_EQ(bytes, std::string("\0\0\0\x0ax\1\1\1\x0bx\2\2\2\x0cx", 15));
}

TEST(Outfeed, rows_keep_their_order_across_pieces) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  std::vector<int64_t> read;
  std::size_t pieces = 0;
  int64_t next = 0;
  for (const int64_t count : {1, 15, 16, 17, 1000, 1, 5000, 3, 100000}) {
    for (int64_t i = 0; i < count; ++i) EXPECT_TRUE(Append(queue, next++).ok());
    const Outfeed::Taken taken = queue.Take(kNoWait);
    for (const int64_t number : Numbers(taken)) read.push_back(number);
    pieces += taken.pieces[0].size();
  }
  EXPECT_EQ(read, Range(0, next));
  EXPECT_TRUE(pieces > 9 && pieces < 80);  // The pieces grow with the number of unread rows.
}

TEST(Outfeed, rows_larger_than_the_maximum_piece_get_one_piece_each) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  const std::vector<std::byte> rest(std::size_t{3} << 19);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(queue.Append(0, 1, kLayout, {{&i, sizeof(i)}, {rest.data(), rest.size()}}).ok());
  }
  const Outfeed::Taken taken = queue.Take(kNoWait);
  EXPECT_EQ(taken.pieces[0].size(), std::size_t{4});
  for (const Rows& piece : taken.pieces[0]) EXPECT_EQ(piece.capacity, 1);
  EXPECT_EQ(Numbers(taken, 0, rest.size()), Range(0, 4));
}

TEST(Outfeed, a_row_without_bytes_counts) {
  const char nothing = 0;
  Outfeed queue("queue", Outfeed::Mode::kAll);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(queue.Append(0, 1, kLayout, {{&nothing, 0}}).ok());
  EXPECT_EQ(queue.Take(kNoWait).count, 20);
}

TEST(Outfeed, a_row_is_ready_once_all_replicas_have_enqueued_it) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(Append(queue, i, 1, 2).ok());
  EXPECT_EQ(queue.replicas(), 2);
  EXPECT_EQ(queue.ready(), 0);
  EXPECT_EQ(queue.Take(kNoWait).count, 0);
  EXPECT_TRUE(Append(queue, 100, 0, 2).ok());
  EXPECT_EQ(queue.ready(), 1);
  const Outfeed::Taken taken = queue.Take(kNoWait);
  EXPECT_EQ(taken.replicas, 2);
  EXPECT_EQ(Numbers(taken, 0), Range(100, 101));
  EXPECT_EQ(Numbers(taken, 1), Range(0, 1));
}

TEST(Outfeed, a_replica_that_ran_ahead_keeps_the_rest_of_its_pieces) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  constexpr int64_t kRows = 200;
  for (int64_t i = 0; i < kRows; ++i) EXPECT_TRUE(Append(queue, i, 0, 2).ok());
  std::vector<int64_t> ahead;
  std::vector<int64_t> after;
  int64_t next = 0;
  for (const int64_t count : {1, 2, 12, 1, 16, 15, 40, 1, 112}) {
    for (int64_t i = 0; i < count; ++i) EXPECT_TRUE(Append(queue, 1000 + next++, 1, 2).ok());
    const Outfeed::Taken taken = queue.Take(kNoWait);
    EXPECT_EQ(taken.count, count);
    for (const int64_t number : Numbers(taken, 0)) ahead.push_back(number);
    for (const int64_t number : Numbers(taken, 1)) after.push_back(number);
  }
  EXPECT_EQ(after, Range(1000, 1000 + next));
  EXPECT_EQ(ahead.size(), after.size());
  for (int64_t i = 0; i < kRows; ++i) EXPECT_EQ(ahead[static_cast<std::size_t>(i)], i);
}

TEST(Outfeed, mode_last_keeps_the_last_element_of_each_replica) {
  Outfeed queue("queue", Outfeed::Mode::kLast);
  EXPECT_EQ(queue.Take(kNoWait).count, 0);
  for (int64_t i = 0; i < 40; ++i) EXPECT_TRUE(Append(queue, i, 0, 2).ok());
  EXPECT_EQ(queue.ready(), 0);
  for (int64_t i = 100; i < 110; ++i) EXPECT_TRUE(Append(queue, i, 1, 2).ok());
  EXPECT_EQ(queue.ready(), 1);
  const Outfeed::Taken taken = queue.Take(kNoWait);
  EXPECT_EQ(Numbers(taken, 0), Range(39, 40));
  EXPECT_EQ(Numbers(taken, 1), Range(109, 110));
  EXPECT_EQ(queue.Take(kNoWait).count, 0);
  EXPECT_TRUE(Append(queue, 1, 0, 2).ok());
  EXPECT_TRUE(Append(queue, 2, 1, 2).ok());
  EXPECT_EQ(Numbers(queue.Take(kNoWait), 1), Range(2, 3));
}

TEST(Outfeed, elements_of_another_layout_are_rejected_and_change_nothing) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  EXPECT_TRUE(Append(queue, 1).ok());
  const absl::Status other = Append(queue, 2, 0, 1, kLayout + 1);
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(other.message(), "`queue`")) << other;
  EXPECT_EQ(Numbers(queue.Take(kNoWait)), Range(1, 2));
  EXPECT_EQ(Append(queue, 2, 0, 1, kLayout + 1).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Outfeed, a_reader_of_another_layout_gets_nothing_and_leaves_the_rows) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  EXPECT_TRUE(Append(queue, 1).ok());
  const Outfeed::Taken other = queue.Take(kNoWait, kLayout + 1);
  EXPECT_EQ(other.count, 0);
  EXPECT_EQ(other.layout, kLayout);
  EXPECT_TRUE(other.pieces.empty());
  EXPECT_EQ(Numbers(queue.Take(kNoWait, kLayout)), Range(1, 2));
}

TEST(Outfeed, an_interrupted_program_enqueues_only_the_element_of_the_active_step) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  for (int64_t first = 0; first < 6; first += 3) {
    EXPECT_TRUE(Append(queue, first).ok());
    {
      const check::Interrupted now;
      EXPECT_TRUE(Append(queue, first + 1).ok());
      for (int i = 0; i < 2; ++i) EXPECT_EQ(Append(queue, 9).code(), absl::StatusCode::kCancelled);
    }
    EXPECT_TRUE(Append(queue, first + 2).ok());
  }
  EXPECT_EQ(Numbers(queue.Take(kNoWait)), Range(0, 6));
}

TEST(Outfeed, a_waiting_reader_gets_a_row_once_it_is_complete) {
  for (const int64_t replicas : {1, 2}) {
    Outfeed queue("queue", Outfeed::Mode::kAll);
    Count taken;
    check::Threads threads;
    threads.Start([&] {
      EXPECT_EQ(Numbers(queue.Take(hours(1))), Range(7, 8));
      taken.Add();
    });
    for (int64_t replica = 0; replica < replicas; ++replica) {
      if (replica > 0) EXPECT_FALSE(taken.Await(1, check::kMoment));
      EXPECT_TRUE(Append(queue, 7 + replica, replica, replicas).ok());
    }
    EXPECT_TRUE(taken.Await());
  }
}

TEST(Outfeed, a_wait_ends_at_its_timeout) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(queue.Take(milliseconds(5)).count, 0);
  EXPECT_TRUE(std::chrono::steady_clock::now() - start >= milliseconds(5));
}

// The reader gets each row once, however late reader and rows are.
TEST(Outfeed, a_reader_of_regular_and_late_rows_gets_each_in_order) {
  constexpr int64_t kRows = 300;
  Outfeed queue("queue", Outfeed::Mode::kAll);
  std::vector<int64_t> read;
  check::Threads threads;
  Count taken;
  threads.Start([&] {
    while (static_cast<int64_t>(read.size()) < kRows) {
      const Outfeed::Taken rows = queue.Take(hours(1));
      for (const int64_t number : Numbers(rows)) read.push_back(number);
    }
    taken.Add();
  });
  for (int64_t i = 0; i < kRows; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(i % 100 == 99 ? 5000 : 200));
    EXPECT_TRUE(Append(queue, i).ok());
  }
  ASSERT_TRUE(taken.Await());
  EXPECT_EQ(read, Range(0, kRows));
  EXPECT_EQ(queue.Take(milliseconds(1)).count, 0);
}

// Several readers share the rows. Each reader gets a range of rows, the same range for every replica.
TEST(Outfeed, rows_that_are_read_while_others_are_appended_are_read_once_and_in_order) {
  constexpr int64_t kReplicas = 3;
  constexpr int64_t kRows = 20000;
  Outfeed queue("queue", Outfeed::Mode::kAll);
  std::vector<std::atomic<int>> read(kRows);
  Count rows;
  {
    check::Threads threads;
    for (int64_t replica = 0; replica < kReplicas; ++replica) {
      threads.Start([&, replica] {
        for (int64_t i = 0; i < kRows; ++i)
          EXPECT_TRUE(Append(queue, kReplicas * i + replica, replica, kReplicas).ok());
      });
    }
    for (int reader = 0; reader < 2; ++reader) {
      threads.Start([&] {
        const auto end = std::chrono::steady_clock::now() + check::kDeadline;
        while (rows.value() < kRows && std::chrono::steady_clock::now() < end) {
          const Outfeed::Taken taken = queue.Take(milliseconds(2));
          if (taken.count == 0) continue;
          const int64_t first = Numbers(taken, 0).front() / kReplicas;
          for (std::size_t replica = 0; replica < kReplicas; ++replica) {
            const std::vector<int64_t> numbers = Numbers(taken, replica);
            for (std::size_t i = 0; i < numbers.size(); ++i) {
              EXPECT_EQ(numbers[i], kReplicas * (first + static_cast<int64_t>(i)) + static_cast<int64_t>(replica));
            }
          }
          for (int64_t i = 0; i < taken.count; ++i) ++read[static_cast<std::size_t>(first + i)];
          rows.Add(taken.count);
        }
      });
    }
  }
  EXPECT_EQ(rows.value(), kRows);
  for (const std::atomic<int>& times : read) EXPECT_EQ(times.load(), 1);
  EXPECT_EQ(queue.ready(), 0);
}

TEST(Outfeed, incomplete_rows_are_dropped_when_replicas_are_aligned) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  for (int64_t i = 0; i < 100; ++i) EXPECT_TRUE(Append(queue, i, 0, 2).ok());
  for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(Append(queue, i, 1, 2).ok());
  queue.Align();
  for (int64_t replica = 0; replica < 2; ++replica) EXPECT_TRUE(Append(queue, 1000 + replica, replica, 2).ok());
  const Outfeed::Taken taken = queue.Take(kNoWait);
  EXPECT_TRUE((Numbers(taken, 0) == std::vector<int64_t>{0, 1, 2, 1000}));
  EXPECT_TRUE((Numbers(taken, 1) == std::vector<int64_t>{0, 1, 2, 1001}));
}

TEST(Outfeed, a_reader_gets_no_more_rows_than_requested_and_the_others_stay) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  for (int64_t i = 0; i < 50; ++i) EXPECT_TRUE(Append(queue, i).ok());
  EXPECT_EQ(Numbers(queue.Take(kNoWait, kLayout, 7)), Range(0, 7));
  const Outfeed::Taken kept = queue.Take(kNoWait, kLayout, 3);  // These rows share memory that later rows still use.
  for (int64_t i = 50; i < 60; ++i) EXPECT_TRUE(Append(queue, i).ok());
  EXPECT_EQ(queue.ready(), 50);
  EXPECT_EQ(Numbers(queue.Take(kNoWait, kLayout, 45)), Range(10, 55));
  EXPECT_EQ(Numbers(queue.Take(kNoWait, kLayout, 1000)), Range(55, 60));
  EXPECT_EQ(Numbers(kept), Range(7, 10));
}

TEST(Outfeed, rows_that_are_put_back_are_the_first_ones) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  const auto append = [&](int64_t first, int64_t last) {
    for (const int64_t i : Range(first, last)) {
      EXPECT_TRUE(Append(queue, i, 0, 2).ok() && Append(queue, 100 + i, 1, 2).ok());
    }
  };
  append(0, 40);
  Outfeed::Taken taken = queue.Take(kNoWait, kLayout, 20);
  append(40, 60);
  queue.PutBack(std::move(taken));
  queue.PutBack(queue.Take(kNoWait));
  taken = queue.Take(kNoWait);
  EXPECT_EQ(Numbers(taken), Range(0, 60));
  EXPECT_EQ(Numbers(taken, 1), Range(100, 160));
}

TEST(Outfeed, in_mode_last_a_row_that_is_put_back_does_not_replace_a_later_one) {
  Outfeed queue("queue", Outfeed::Mode::kLast);
  EXPECT_TRUE(Append(queue, 1).ok());
  queue.PutBack(queue.Take(kNoWait));
  Outfeed::Taken taken = queue.Take(kNoWait);
  EXPECT_EQ(Numbers(taken), Range(1, 2));
  EXPECT_TRUE(Append(queue, 2).ok());
  queue.PutBack(std::move(taken));
  EXPECT_EQ(Numbers(queue.Take(kNoWait)), Range(2, 3));
}

}  // namespace
