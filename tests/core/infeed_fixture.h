// Infeed queues of numbers, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tensorflow_ipu/kernels/queues/infeed.h"
#include "tests/core/threads.h"

namespace check {

using Element = std::shared_ptr<const int64_t>;
using Queue = tensorflow_ipu::core::Infeed<Element>;

// The size of elements so large that a queue keeps no more of them than its depth.
constexpr std::size_t kLargeBytes = std::size_t{1} << 24;

constexpr int64_t kNothing = -1;

inline std::shared_ptr<Queue> MakeQueue(int64_t depth) { return std::make_shared<Queue>("queue", depth); }

inline absl::Status Push(Queue& queue, int64_t number, std::size_t bytes = kLargeBytes) {
  return queue.Push(std::make_shared<const int64_t>(number), bytes);
}

// Returns the number that a Take gets, or kNothing.
inline int64_t Taken(Queue& queue, int64_t replica = 0, int64_t replicas = 1) {
  Element element;
  absl::Status why;
  const Queue::Took took = queue.Take(replica, replicas, &element, &why);
  EXPECT_TRUE(took != Queue::Took::kFailed);
  return took == Queue::Took::kElement ? *element : kNothing;
}

// Returns the error of a Take.
inline absl::Status Failure(Queue& queue, int64_t replica = 0, int64_t replicas = 1) {
  Element element;
  absl::Status why;
  EXPECT_EQ(queue.Take(replica, replicas, &element, &why), Queue::Took::kFailed);
  return why;
}

// A thread that pushes 0, 1, and so on.
class Pusher {
 public:
  Pusher(Queue& queue, int64_t count) {
    thread_.Start([this, &queue, count] {
      for (int64_t i = 0; i < count; ++i) {
        EXPECT_TRUE(Push(queue, i).ok());
        pushed.Add();
      }
    });
  }

  Count pushed;

 private:
  Threads thread_;
};

// The result of a TakeLater, once `done` is 1.
struct Delivery {
  bool Gets(int64_t number) { return done.Await() && why.ok() && *element == number; }
  bool Fails(absl::StatusCode code) { return done.Await() && why.code() == code && element == nullptr; }

  Count done;
  absl::Status why;
  Element element;
  std::thread::id thread;
};

inline std::shared_ptr<Delivery> Later(Queue& queue, int64_t replica = 0, int64_t replicas = 1) {
  auto delivery = std::make_shared<Delivery>();
  queue.TakeLater(replica, replicas, [delivery](absl::Status why, Element element) {
    delivery->why = std::move(why);
    delivery->element = std::move(element);
    delivery->thread = std::this_thread::get_id();
    delivery->done.Add();
  });
  return delivery;
}

}  // namespace check
