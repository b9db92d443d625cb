// Counters and samples of the whole process. The counts of single queues are in `Passed`.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"

namespace tensorflow_ipu::core {

// Named counters, which only grow. Thread-safe; after its look-up, a counter needs no lock.
class Counters {
 public:
  static Counters& Global() { return NeverDestroyed<Counters>(); }
  std::atomic<int64_t>* Of(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return &counters_[name];  // The nodes of a map keep their addresses.
  }

  std::map<std::string, int64_t> Read() const ABSL_LOCKS_EXCLUDED(mutex_) {
    std::map<std::string, int64_t> values;
    const absl::MutexLock lock(&mutex_);
    for (const auto& [name, counter] : counters_) values[name] = counter.load(std::memory_order_relaxed);
    return values;
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, std::atomic<int64_t>> counters_ ABSL_GUARDED_BY(mutex_);
};

// A counter of the process. The metrics list it as soon as it is constructed.
class Counter {
 public:
  explicit Counter(const std::string& name) : count_(Counters::Global().Of(name)) {}

  void Add(int64_t by = 1) const { count_->fetch_add(by, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t>* const count_;
};

// The durations of events; the latest are kept. Thread-safe. Add takes a lock, so call it only in code that has waited
// anyway.
class Samples {
 public:
  using Clock = std::chrono::steady_clock;

  // In nanoseconds.
  struct Sample {
    int64_t end;  // A time of the monotonic clock.
    int64_t duration;
  };
  struct Summary {
    int64_t count = 0;
    int64_t total = 0;
    std::vector<Sample> latest;  // In the order of their ends.
  };

  static constexpr std::size_t kCapacity = 16384;

  void Add(Clock::time_point end, std::chrono::nanoseconds duration) {
    Part& own = parts_[OfThread()];
    const absl::MutexLock lock(&own.mutex);
    Note(own, {end.time_since_epoch().count(), duration.count()});
  }

  void AddAll(Clock::time_point end, const std::vector<Clock::time_point>& begins) {
    Part& own = parts_[OfThread()];
    const absl::MutexLock lock(&own.mutex);
    for (const Clock::time_point begin : begins) Note(own, {end.time_since_epoch().count(), (end - begin).count()});
  }

  Summary Read(int64_t most = kCapacity) const {
    Summary all;
    for (const Part& part : parts_) {
      const absl::MutexLock lock(&part.mutex);
      all.count += part.noted.count;
      all.total += part.noted.total;
      if (most > 0) all.latest.insert(all.latest.end(), part.noted.latest.begin(), part.noted.latest.end());
    }
    std::sort(all.latest.begin(), all.latest.end(), [](const Sample& a, const Sample& b) { return a.end < b.end; });
    const auto limit = static_cast<std::ptrdiff_t>(std::clamp<int64_t>(most, 0, kCapacity));
    const auto size = static_cast<std::ptrdiff_t>(all.latest.size());
    if (size > limit) all.latest.erase(all.latest.begin(), all.latest.end() - limit);
    return all;
  }

 private:
  // Threads are spread over several parts, so that they do not contend for one lock.
  struct alignas(64) Part {
    mutable absl::Mutex mutex;
    Summary noted ABSL_GUARDED_BY(mutex);  // `latest` is a ring once it is full.
  };
  static constexpr std::size_t kParts = 16;

  static void Note(Part& part, const Sample& sample) ABSL_EXCLUSIVE_LOCKS_REQUIRED(part.mutex) {
    if (part.noted.latest.size() < kCapacity) {
      part.noted.latest.push_back(sample);
    } else {
      part.noted.latest[static_cast<std::size_t>(part.noted.count) % kCapacity] = sample;
    }
    ++part.noted.count;
    part.noted.total += sample.duration;
  }

  static std::size_t OfThread() {
    static std::atomic<std::size_t> threads{0};
    static thread_local const std::size_t own = threads.fetch_add(1, std::memory_order_relaxed) % kParts;
    return own;
  }

  std::array<Part, kParts> parts_;
};

struct Metrics {
  Samples infeed_waits;
  Samples collective_waits;
  Samples graph_runs;  // Runs that Python does not see: runs of sessions, and of programs in functions of the host.

  static Metrics& Global() { return NeverDestroyed<Metrics>(); }
};

// The totals of a queue.
struct Passed {
  int64_t elements = 0;  // Dequeued from an infeed by programs, or enqueued in an outfeed by all replicas.
  int64_t bytes = 0;
  int64_t waits = 0;  // The number of times that a replica had to wait for an element.
  int64_t wait_ns = 0;

  Passed& operator+=(const Passed& other) {
    elements += other.elements;
    bytes += other.bytes;
    waits += other.waits;
    wait_ns += other.wait_ns;
    return *this;
  }
};

// Log messages of native threads, which must not call Python. Python takes them when it writes its log. Thread-safe.
class Journal {
 public:
  struct Line {
    int64_t when;
    std::string text;
  };

  static constexpr std::size_t kCapacity = 256;

  static Journal& Global() { return NeverDestroyed<Journal>(); }

  // Adds a line. Drops the oldest line when full.
  void Note(std::string text) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    if (lines_.size() == kCapacity) lines_.pop_front();
    lines_.push_back({std::chrono::steady_clock::now().time_since_epoch().count(), std::move(text)});
  }

  std::deque<Line> Take() ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return std::exchange(lines_, {});
  }

 private:
  absl::Mutex mutex_;
  std::deque<Line> lines_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu::core
