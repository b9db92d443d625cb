// Tests an infeed under concurrent pushes, takes, interrupts and closes: each element goes to one taker, and each taker
// is called once.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tensorflow_ipu/kernels/queues/infeed.h"
#include "tests/core/infeed_fixture.h"
#include "tests/core/threads.h"

namespace {

using check::Count;
using namespace check;
using namespace tensorflow_ipu::core;

// Takes one replica's elements like a program does: at once, after a spin, or later. It retries a failed wait, unless
// the queue has ended. Its functions run one at a time, on the threads of the callbacks.
class Program : public std::enable_shared_from_this<Program> {
 public:
  Program(std::shared_ptr<Queue> queue, int64_t replica, int64_t replicas, Count* ended)
      : queue_(std::move(queue)), replica_(replica), replicas_(replicas), ended_(ended) {}

  void Run() {
    while (true) {
      Element element;
      absl::Status why;
      if (queue_->TakeOrSpin(replica_, replicas_, &element, &why) == Queue::Took::kNothing) {
        queue_->TakeLater(replica_, replicas_, [self = shared_from_this()](absl::Status late_why, Element late) {
          if (self->Accept(late_why, late)) self->Run();
        });
        return;
      }
      if (!Accept(why, element)) return;
    }
  }

  // Valid once the program has ended.
  const std::vector<int64_t>& numbers() const { return numbers_; }
  int64_t failed_waits() const { return failed_waits_; }

 private:
  // Returns true if the program continues.
  bool Accept(const absl::Status& why, const Element& element) {
    EXPECT_EQ(why.ok(), (element != nullptr));
    if (element != nullptr) {
      numbers_.push_back(*element);
      return true;
    }
    if (why.code() == absl::StatusCode::kOutOfRange || why.message().find("deleted") != std::string::npos) {
      ended_->Add();
      return false;
    }
    ++failed_waits_;
    return true;
  }

  const std::shared_ptr<Queue> queue_;
  const int64_t replica_;
  const int64_t replicas_;
  Count* const ended_;
  std::vector<int64_t> numbers_;
  int64_t failed_waits_ = 0;
};

// Checks that replica r got r, r + replicas, r + 2 * replicas, and so on.
void CheckNumbers(const Program& program, int64_t replica, int64_t replicas, int64_t rows) {
  EXPECT_EQ(static_cast<int64_t>(program.numbers().size()), rows);
  for (std::size_t row = 0; row < program.numbers().size(); ++row) {
    EXPECT_EQ(program.numbers()[row], static_cast<int64_t>(row) * replicas + replica);
  }
}

// Pushes `elements` to a queue that the programs of `replicas` replicas empty. `meanwhile` runs repeatedly until they
// have ended.
void PushThrough(int64_t depth, int64_t replicas, int64_t elements, std::size_t bytes,
                 const std::function<void(Queue&)>& meanwhile) {
  const auto queue = MakeQueue(depth);
  Count ended;
  std::atomic<bool> over{false};
  std::vector<std::shared_ptr<Program>> programs;
  {
    Threads threads;
    threads.Start([&] {
      for (int64_t i = 0; i < elements; ++i) EXPECT_TRUE(Push(*queue, i, bytes).ok());
      queue->End(absl::OutOfRangeError("over"));
    });
    for (int64_t replica = 0; replica < replicas; ++replica) {
      programs.push_back(std::make_shared<Program>(queue, replica, replicas, &ended));
      threads.Start([program = programs.back()] { program->Run(); });
    }
    threads.Start([&] {
      while (!over) meanwhile(*queue);
    });
    const bool all = ended.Await(replicas);
    EXPECT_TRUE(all);
    over = true;
    if (!all) queue->Close();
  }
  for (int64_t replica = 0; replica < replicas; ++replica)
    CheckNumbers(*programs[replica], replica, replicas, elements / replicas);
  EXPECT_EQ(queue->ready(), elements % replicas);
  EXPECT_EQ(queue->waiting(), 0);
}

TEST(InfeedStress, one_program_gets_every_element_once_and_in_order) {
  PushThrough(3, 1, 20000, kLargeBytes, [](Queue& queue) {
    EXPECT_TRUE(queue.ready() <= 3);
    std::this_thread::yield();
  });
}

TEST(InfeedStress, small_elements_arrive_once_and_in_order_while_the_queue_grows) {
  for (const std::size_t bytes : {4, 8192, 65536}) {
    PushThrough(1, 1, 10000, bytes, [](Queue&) { std::this_thread::yield(); });
    PushThrough(2, 3, 10000, bytes, [](Queue&) { std::this_thread::yield(); });
  }
}

TEST(InfeedStress, sixteen_programs_get_every_row_once_and_in_order) {
  for (const std::size_t bytes : {kLargeBytes, std::size_t{4}}) {
    PushThrough(2, 16, 16 * 500 + 7, bytes, [](Queue& queue) {
      EXPECT_TRUE(queue.waiting() <= 16);
      std::this_thread::yield();
    });
  }
}

TEST(InfeedStress, interrupts_lose_no_element) {
  for (const int64_t replicas : {1, 4}) {
    for (const std::size_t bytes : {kLargeBytes, std::size_t{4}}) {
      PushThrough(1, replicas, 3000, bytes, [](Queue& queue) {
        queue.Interrupt();
        std::this_thread::yield();
      });
    }
  }
}

TEST(InfeedStress, limits_of_waits_that_race_with_elements_lose_none) {
  for (const int64_t replicas : {1, 4}) {
    for (const std::size_t bytes : {kLargeBytes, std::size_t{4}}) {
      PushThrough(1, replicas, 3000, bytes, [limit = int64_t{0}](Queue&) mutable {
        wait_limit_ns = 1 + limit++ % 20000;
        std::this_thread::yield();
      });
    }
  }
  wait_limit_ns = 0;
}

// Covers the life of a queue that is restarted repeatedly while programs use it.
TEST(InfeedStress, whenever_a_queue_is_closed_its_pump_and_programs_end) {
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    wait_limit_ns = round % 3 == 0 ? 10000 : 0;
    const int64_t replicas = 1 + round % 2;
    const std::size_t bytes = round % 4 < 2 ? kLargeBytes : 4;
    auto queue = MakeQueue(1 + round % 3);
    Count ended;
    Count pushed;
    {
      Threads threads;
      threads.Start([queue, &pushed, bytes] {
        for (int64_t i = 0; Push(*queue, i, bytes).ok(); ++i) pushed.Add();
      });
      for (int64_t replica = 0; replica < replicas; ++replica) {
        threads.Start([program = std::make_shared<Program>(queue, replica, replicas, &ended)] { program->Run(); });
      }
      EXPECT_TRUE(pushed.Await(round % 7));
      queue->Close();
      queue.reset();
      ASSERT_TRUE(ended.Await(replicas));
    }
  }
  wait_limit_ns = 0;
}

}  // namespace
