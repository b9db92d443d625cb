// Tests objects by number, and objects of a thread.
#include "tensorflow_ipu/kernels/support/registry.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/core/threads.h"

namespace {

using namespace tensorflow_ipu::core;

TEST(Registry, an_object_is_found_under_its_number_until_it_is_removed) {
  Registry<std::string> registry;
  const int64_t number = registry.Add(std::make_shared<std::string>("queue"));
  const std::shared_ptr<std::string> found = registry.Find(number);
  ASSERT_TRUE(found != nullptr);
  EXPECT_EQ(*found, "queue");
  EXPECT_EQ(registry.Remove(number), found);
  EXPECT_EQ(registry.Find(number), nullptr);
  EXPECT_EQ(registry.Remove(number), nullptr);
  EXPECT_EQ(found.use_count(), 1);
  EXPECT_EQ(*found, "queue");
}

TEST(Registry, no_number_identifies_objects_of_two_types) {
  Registry<std::string> queues;
  Registry<int> others;
  const int64_t queue = queues.Add(std::make_shared<std::string>("queue"));
  const int64_t other = others.Add(std::make_shared<int>(1));
  EXPECT_TRUE(queue != other);
  EXPECT_TRUE(queue > 0 && other > 0);
  EXPECT_EQ(others.Find(queue), nullptr);
  EXPECT_EQ(queues.Find(other), nullptr);
  EXPECT_EQ(queues.Find(0), nullptr);
  EXPECT_EQ(queues.Find(-1), nullptr);
}

TEST(Registry, all_returns_the_objects_that_were_not_removed) {
  Registry<int> registry;
  const int64_t first = registry.Add(std::make_shared<int>(1));
  registry.Add(std::make_shared<int>(2));
  registry.Add(std::make_shared<int>(3));
  registry.Remove(first);
  std::set<int> values;
  for (const auto& object : registry.All()) values.insert(*object);
  EXPECT_TRUE(values == std::set<int>({2, 3}));
}

TEST(Registry, concurrent_threads_get_unique_numbers) {
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  Registry<int> registry;
  std::mutex mutex;
  std::set<int64_t> numbers;
  {
    check::Threads threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.Start([&, t] {
        for (int i = 0; i < kEach; ++i) {
          const int64_t number = registry.Add(std::make_shared<int>(t));
          const auto found = registry.Find(number);
          EXPECT_TRUE(found != nullptr && *found == t);
          if (i % 2 == 0) EXPECT_EQ(registry.Remove(number), found);
          std::lock_guard<std::mutex> lock(mutex);
          numbers.insert(number);
        }
      });
    }
    threads.Start([&] {
      for (int i = 0; i < kEach; ++i) {
        for (const auto& object : registry.All()) EXPECT_TRUE(*object < kThreads);
      }
    });
  }
  EXPECT_EQ(numbers.size(), std::size_t{kThreads * kEach});
  EXPECT_EQ(registry.All().size(), std::size_t{kThreads * kEach / 2});
}

TEST(Registry, each_device_has_one_object) {
  Registry<int> objects;
  const auto first = objects.Of(3, [] { return std::make_shared<int>(7); });
  EXPECT_EQ(*first, 7);
  EXPECT_TRUE(objects.Of(3, [] { return std::make_shared<int>(8); }) == first);
  EXPECT_EQ(*objects.Of(1, [] { return std::make_shared<int>(9); }), 9);
  EXPECT_EQ(objects.All().size(), std::size_t{2});
}

std::atomic<int> ended{0};

struct Object {
  int value = 0;
  ~Object() { ++ended; }
};

TEST(Registry, each_thread_has_one_object_which_is_destroyed_with_it) {
  OfThread<Object>().value = 1;
  std::thread([] {
    EXPECT_EQ(OfThread<Object>().value, 0);
    OfThread<Object>().value = 2;
    EXPECT_EQ(OfThread<Object>().value, 2);
  }).join();
  EXPECT_EQ(ended.load(), 1);
  EXPECT_EQ(OfThread<Object>().value, 1);
}

}  // namespace
