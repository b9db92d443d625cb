// The unbounded queue from programs to the host.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/support/metrics.h"

namespace tensorflow_ipu::core {

// One tensor of an element.
struct Leaf {
  const void* data;
  std::size_t bytes;
};

// Consecutive elements of one replica, each with its leaves one after the other. Several objects may share the same
// memory.
struct Rows {
  std::shared_ptr<std::byte[]> data;
  int64_t capacity = 0;  // In rows.
  int64_t begin = 0;
  int64_t end = 0;
};

// An outfeed queue. Row i has element i of every replica, and is ready once all replicas have enqueued it. Thread-safe.
class Outfeed {
 public:
  enum class Mode { kAll, kLast };

  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // `count` complete rows: for each replica the pieces that contain them, in order.
  struct Taken {
    int64_t count = 0;
    int64_t replicas = 0;
    int64_t layout = 0;
    std::vector<std::vector<Rows>> pieces;
  };

  Outfeed(std::string name, Mode mode) : name_(std::move(name)), mode_(mode) {}

  const std::string& name() const { return name_; }

  // Appends an element; in mode kLast it replaces the replica's element. `layout` identifies its structure, types and
  // shapes, which must be equal for all elements of a queue. Fails if there is no memory.
  absl::Status Append(int64_t replica, int64_t replicas, int64_t layout, const std::vector<Leaf>& leaves)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Sets the layout without an element. Used by programs with synthetic data, which enqueue nothing.
  void Declare(int64_t layout) ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes up to `most` complete rows; waits for a row if there are none. Takes none if `layout` is not 0 and differs
  // from the layout of the elements.
  Taken Take(std::chrono::nanoseconds timeout, int64_t layout = 0, int64_t most = kNoLimit) ABSL_LOCKS_EXCLUDED(mutex_);

  // Puts unused rows back at the front of the queue. In mode kLast, a later row is kept instead.
  void PutBack(Taken taken) ABSL_LOCKS_EXCLUDED(mutex_);

  // Drops incomplete rows, so that the next run starts a new row. No program may use the queue at the same time.
  void Align() ABSL_LOCKS_EXCLUDED(mutex_);

  // Drops the elements and fails later calls of Append. Threads that used the queue may keep it alive for long
  // afterwards.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the error of a program that enqueues to a deleted queue.
  static absl::Status Deleted();

  // Returns 0 before the first element.
  int64_t layout() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return layout_;
  }

  // Returns the number of replicas of the program that enqueued last; 0 before the first element.
  int64_t replicas() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return static_cast<int64_t>(replicas_.size());
  }

  // Returns the number of complete rows.
  int64_t ready() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return Ready();
  }

  Passed passed() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return {appended_, appended_ * static_cast<int64_t>(row_bytes_), 0, 0};
  }

  // Returns the arrival time of the latest row that a reader waited for, in nanoseconds of the monotonic clock; 0
  // before the first such row.
  int64_t woken_ns() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return woken_ns_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Replica {
    std::deque<Rows> pieces;
    int64_t count = 0;
    int64_t interrupt = 0;  // The number of the last interrupt during which the replica enqueued.
  };

  absl::Status TryAppend(int64_t replica, int64_t replicas, int64_t layout, const std::vector<Leaf>& leaves)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Taken TakeReady(int64_t layout, int64_t most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Holds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns null if there is no memory.
  Rows* PieceWithRoom(Replica* replica) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasMemoryFor(std::size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::size_t UnreadBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Full() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_;
  const Mode mode_;

  mutable absl::Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  int64_t readers_ ABSL_GUARDED_BY(mutex_) = 0;  // The number of threads that wait in Take.
  int64_t layout_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t row_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t appended_ ABSL_GUARDED_BY(mutex_) = 0;  // The number of elements of all replicas.
  int64_t woken_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  // The number of bytes to allocate before the next check of the available memory.
  std::size_t until_check_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Replica> replicas_ ABSL_GUARDED_BY(mutex_);
};

// Copies each leaf of every row, which has `sizes[leaf]` bytes per replica, to `to(row, leaf)`. The replicas of a row
// are stored one after the other.
template <typename Destination>
void CopyRows(const Outfeed::Taken& taken, const std::vector<std::size_t>& sizes, Destination to) {
  const std::size_t row_bytes = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  for (std::size_t replica = 0; replica < taken.pieces.size(); ++replica) {
    std::size_t row = 0;
    for (const Rows& piece : taken.pieces[replica]) {
      const std::byte* from = piece.data.get() + static_cast<std::size_t>(piece.begin) * row_bytes;
      for (int64_t remaining = piece.end - piece.begin; remaining > 0; --remaining, ++row) {
        for (std::size_t leaf = 0; leaf < sizes.size(); from += sizes[leaf++]) {
          std::memcpy(static_cast<std::byte*>(to(row, leaf)) + replica * sizes[leaf], from, sizes[leaf]);
        }
      }
    }
  }
}

// Copies each leaf of every row to `to(leaf)`, one row after the other.
template <typename Destination>
void StackLeaves(const Outfeed::Taken& taken, const std::vector<std::size_t>& sizes, Destination to) {
  const std::size_t replicas = taken.pieces.size();
  if (replicas == 1 && sizes.size() == 1) {  // The rows of a piece are already contiguous.
    auto* destination = static_cast<std::byte*>(to(0));
    for (const Rows& piece : taken.pieces[0]) {
      const std::size_t bytes = static_cast<std::size_t>(piece.end - piece.begin) * sizes[0];
      std::memcpy(destination, piece.data.get() + static_cast<std::size_t>(piece.begin) * sizes[0], bytes);
      destination += bytes;
    }
    return;
  }
  CopyRows(taken, sizes, [&](std::size_t row, std::size_t leaf) {
    return static_cast<std::byte*>(to(leaf)) + row * replicas * sizes[leaf];
  });
}

}  // namespace tensorflow_ipu::core
