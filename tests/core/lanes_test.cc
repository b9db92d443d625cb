// Shared elements of replicas, and their alignment after a failure, in both kinds of queues.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "tensorflow_ipu/kernels/core/outfeed.h"
#include "tests/core/check.h"
#include "tests/core/infeed_fixture.h"

namespace {

using check::kFailed;
using check::kNothing;
using check::Later;
using check::Push;
using check::Queue;
using check::Taken;
using namespace tensorflow_ipu::core;

std::shared_ptr<Queue> Shared(int64_t size, bool orthogonal) {
  return std::make_shared<Queue>("queue", 8, tensorflow_ipu::core::Grouping{size, orthogonal});
}

TEST(neighbours_share_an_element) {
  const auto queue = Shared(2, false);
  for (int64_t i = 0; i < 4; ++i) Push(*queue, i);
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t replica = 0; replica < 4; ++replica) CHECK_EQ(Taken(*queue, replica, 4), 2 * row + replica / 2);
  }
  CHECK_EQ(queue->ready(), 0);
}

TEST(replicas_far_apart_share_an_element) {
  const auto queue = Shared(2, true);
  for (int64_t i = 0; i < 4; ++i) Push(*queue, i);
  for (int64_t replica = 0; replica < 4; ++replica) {
    for (int64_t row = 0; row < 2; ++row) CHECK_EQ(Taken(*queue, replica, 4), 2 * row + replica % 2);
  }
}

TEST(all_share_an_element) {
  const auto queue = Shared(0, false);
  Push(*queue, 7);
  for (int64_t replica = 0; replica < 3; ++replica) CHECK_EQ(Taken(*queue, replica, 3), 7);
  CHECK_EQ(Taken(*queue, 0, 3), kNothing);
}

TEST(all_who_share_an_element_get_it_when_it_comes) {
  const auto queue = Shared(2, false);
  std::vector<std::shared_ptr<check::Delivery>> deliveries;
  for (int64_t replica = 0; replica < 2; ++replica) deliveries.push_back(Later(*queue, replica, 2));
  Push(*queue, 5);
  for (const auto& delivery : deliveries) {
    CHECK(delivery->done.Await());
    CHECK_EQ(*delivery->element, 5);
  }
}

TEST(groups_that_do_not_divide_the_replicas_are_refused) {
  const auto queue = Shared(3, false);
  Push(*queue, 1);
  Status why;
  CHECK_EQ(Taken(*queue, 0, 4, &why), kFailed);
  CHECK(why.code == Code::kInvalidArgument);
}

TEST(replicas_that_lag_skip_to_the_row_of_the_furthest) {
  const auto queue = check::MakeQueue(8);
  for (int64_t i = 0; i < 8; ++i) Push(*queue, i);
  CHECK_EQ(Taken(*queue, 0, 2), 0);
  CHECK_EQ(Taken(*queue, 0, 2), 2);
  CHECK_EQ(Taken(*queue, 1, 2), 1);
  queue->Align();
  CHECK_EQ(Taken(*queue, 0, 2), 4);
  CHECK_EQ(Taken(*queue, 1, 2), 5);
}

TEST(rows_that_are_not_whole_are_dropped) {
  Outfeed queue("queue", Outfeed::Mode::kAll);
  const auto append = [&queue](int64_t number, int64_t replica) {
    queue.Append(replica, 2, 1, {{&number, sizeof(number)}});
  };
  for (int64_t i = 0; i < 100; ++i) append(i, 0);
  for (int64_t i = 0; i < 3; ++i) append(i, 1);
  queue.Align();
  append(1000, 0);
  append(2000, 1);
  const Outfeed::Taken taken = queue.Take(std::chrono::nanoseconds(0));
  CHECK_EQ(taken.count, 4);
  for (int64_t replica = 0; replica < 2; ++replica) {
    const auto& piece = taken.pieces[replica].back();
    int64_t last;
    std::memcpy(&last, piece.data.get() + static_cast<std::size_t>(piece.end - 1) * sizeof(last), sizeof(last));
    CHECK_EQ(last, 1000 * (replica + 1));
  }
}

}  // namespace
