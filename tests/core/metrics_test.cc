// Tests counters, samples and log lines.
#include "tensorflow_ipu/kernels/support/metrics.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/core/threads.h"

namespace {

using std::chrono::nanoseconds;
using namespace tensorflow_ipu::core;

TEST(Metrics, a_name_has_one_counter_for_all_threads) {
  Counters counters;
  EXPECT_TRUE(counters.Read().empty());
  check::OnThreads(4, [&](int) {
    std::atomic<int64_t>* const own = counters.Of("own");
    for (int i = 0; i < 1000; ++i) {
      own->fetch_add(1, std::memory_order_relaxed);
      counters.Of("other " + std::to_string(i % 10));
    }
  });
  const std::map<std::string, int64_t> values = counters.Read();
  EXPECT_TRUE(values.size() == 11 && values.at("own") == 4000 && values.at("other 3") == 0);
}

TEST(Metrics, the_latest_lines_are_taken_once) {
  Journal journal;
  EXPECT_TRUE(journal.Take().empty());
  for (std::size_t i = 0; i < Journal::kCapacity + 2; ++i) journal.Note(std::to_string(i));
  const auto lines = journal.Take();
  EXPECT_TRUE(lines.size() == Journal::kCapacity && lines.front().text == "2" &&
              lines.front().when <= lines.back().when);
  EXPECT_TRUE(journal.Take().empty());
}

Samples::Clock::time_point At(int64_t when) { return Samples::Clock::time_point(nanoseconds(when)); }

TEST(Metrics, the_latest_samples_are_returned_in_order) {
  Samples samples;
  EXPECT_TRUE(samples.Read().count == 0 && samples.Read().latest.empty());
  for (int64_t i = 1; i <= 3; ++i) samples.Add(At(10 * i), nanoseconds(i));
  const Samples::Summary all = samples.Read();
  EXPECT_TRUE(all.count == 3 && all.total == 6 && all.latest.size() == 3);
  EXPECT_TRUE(all.latest[0].end == 10 && all.latest[2].duration == 3);
  const Samples::Summary two = samples.Read(2);
  EXPECT_TRUE(two.count == 3 && two.latest.size() == 2 && two.latest[0].end == 20);
  EXPECT_TRUE(samples.Read(0).latest.empty());
}

TEST(Metrics, samples_with_the_same_end_are_added_together) {
  Samples samples;
  samples.AddAll(At(50), {At(10), At(30), At(50)});
  samples.AddAll(At(60), {});
  const Samples::Summary all = samples.Read();
  EXPECT_TRUE(all.count == 3 && all.total == 60 && all.latest.size() == 3);
  EXPECT_TRUE(all.latest[0].end == 50 && all.latest[0].duration == 40 && all.latest[2].duration == 0);
}

TEST(Metrics, the_oldest_samples_are_dropped) {
  Samples samples;
  const auto capacity = static_cast<int64_t>(Samples::kCapacity);
  for (int64_t i = 0; i < capacity + 5; ++i) samples.Add(At(i), nanoseconds(1));
  const Samples::Summary all = samples.Read();
  EXPECT_TRUE(all.count == capacity + 5 && all.total == capacity + 5);
  EXPECT_EQ(static_cast<int64_t>(all.latest.size()), capacity);
  EXPECT_TRUE(all.latest.front().end == 5 && all.latest.back().end == capacity + 4);
}

TEST(Metrics, concurrent_threads_lose_no_sample) {
  Samples samples;
  check::OnThreads(4, [&](int) {
    for (int i = 0; i < 1000; ++i) samples.Add(At(i), nanoseconds(2));
    samples.Read();
  });
  EXPECT_TRUE(samples.Read().count == 4000 && samples.Read().total == 8000);
}

TEST(Metrics, the_latest_samples_of_all_threads_are_returned_in_order) {
  Samples samples;
  for (int64_t thread = 0; thread < 3; ++thread) {
    std::thread([&samples, thread] {
      for (int64_t i = 0; i < 10; ++i) samples.Add(At(3 * i + thread), nanoseconds(thread));
    }).join();
  }
  const Samples::Summary latest = samples.Read(4);
  EXPECT_TRUE(latest.count == 30 && latest.total == 30 && latest.latest.size() == 4);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(latest.latest[static_cast<std::size_t>(i)].end, 26 + i);
}

}  // namespace
