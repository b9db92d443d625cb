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

// Consecutive elements of one replica, each with its leaves side by side. Several may be parts of the same memory.
struct Rows {
  std::shared_ptr<std::byte[]> data;
  int64_t capacity = 0;  // In rows.
  int64_t begin = 0;
  int64_t end = 0;
};

// Row i has element i of every replica, and is ready once all replicas have enqueued it. Thread-safe.
class Outfeed {
 public:
  enum class Mode { kAll, kLast };

  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // `count` whole rows; for each replica the pieces that hold them in order.
  struct Taken {
    int64_t count = 0;
    int64_t replicas = 0;
    int64_t layout = 0;
    std::vector<std::vector<Rows>> pieces;
  };

  Outfeed(std::string name, Mode mode) : name_(std::move(name)), mode_(mode) {}

  const std::string& name() const { return name_; }

  // Appends an element; in mode kLast it replaces the replica's element. `layout` identifies its structure, types and
  // shapes, which all elements of a queue share. Fails without memory.
  absl::Status Append(int64_t replica, int64_t replicas, int64_t layout, const std::vector<Leaf>& leaves)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Notes the layout where no data passes between host and device.
  void Declare(int64_t layout) ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes up to `most` whole rows; waits for one if there are none. Takes none if `layout` is not 0 and differs from
  // that of the elements.
  Taken Take(std::chrono::nanoseconds timeout, int64_t layout = 0, int64_t most = kNoLimit) ABSL_LOCKS_EXCLUDED(mutex_);

  // Puts rows that could not be used back in front. In mode kLast a later one is kept.
  void PutBack(Taken taken) ABSL_LOCKS_EXCLUDED(mutex_);

  // Drops incomplete rows, so that the next run starts a new one. No program may use the queue meanwhile.
  void Align() ABSL_LOCKS_EXCLUDED(mutex_);

  // Drops the elements and fails later calls of Append. Threads that used the queue may hold it for long afterwards.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // The error of a program that enqueues to a deleted queue.
  static absl::Status Deleted();

  // 0 before the first element.
  int64_t layout() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return layout_;
  }

  // Replicas of the program that enqueued last; 0 before the first element.
  int64_t replicas() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return static_cast<int64_t>(replicas_.size());
  }

  // Whole rows that are ready.
  int64_t ready() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return Ready();
  }

  Passed passed() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return {appended_, appended_ * static_cast<int64_t>(row_bytes_), 0, 0};
  }

  // When the latest row came that a reader waited for, in nanoseconds of the monotonic clock; 0 before the first.
  int64_t woken_ns() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return woken_ns_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Replica {
    std::deque<Rows> pieces;
    int64_t count = 0;
    int64_t interrupt = 0;  // The last one in which it enqueued.
  };

  absl::Status TryAppend(int64_t replica, int64_t replicas, int64_t layout, const std::vector<Leaf>& leaves)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Taken TakeReady(int64_t layout, int64_t most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Holds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null without memory.
  Rows* PieceWithRoom(Replica* replica) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasMemoryFor(std::size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::size_t UnreadBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Full() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_;
  const Mode mode_;

  mutable absl::Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  int64_t readers_ ABSL_GUARDED_BY(mutex_) = 0;  // Threads that wait in Take.
  int64_t layout_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t row_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t appended_ ABSL_GUARDED_BY(mutex_) = 0;  // Elements of all replicas.
  int64_t woken_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  // Bytes to allocate before the next check of the available memory.
  std::size_t until_check_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Replica> replicas_ ABSL_GUARDED_BY(mutex_);
};

// Copies each leaf of every row, of `sizes[leaf]` bytes, to `to(row, leaf)`, with the replicas of a row side by side.
template <typename Destination>
void CopyRows(const Outfeed::Taken& taken, const std::vector<std::size_t>& sizes, Destination to) {
  const std::size_t row_bytes = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  for (std::size_t replica = 0; replica < taken.pieces.size(); ++replica) {
    std::size_t row = 0;
    for (const Rows& piece : taken.pieces[replica]) {
      const std::byte* from = piece.data.get() + static_cast<std::size_t>(piece.begin) * row_bytes;
      for (int64_t left = piece.end - piece.begin; left > 0; --left, ++row) {
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
  if (replicas == 1 && sizes.size() == 1) {  // The rows of a piece are side by side already.
    auto* at = static_cast<std::byte*>(to(0));
    for (const Rows& piece : taken.pieces[0]) {
      const std::size_t bytes = static_cast<std::size_t>(piece.end - piece.begin) * sizes[0];
      std::memcpy(at, piece.data.get() + static_cast<std::size_t>(piece.begin) * sizes[0], bytes);
      at += bytes;
    }
    return;
  }
  CopyRows(taken, sizes, [&](std::size_t row, std::size_t leaf) {
    return static_cast<std::byte*>(to(leaf)) + row * replicas * sizes[leaf];
  });
}

}  // namespace tensorflow_ipu::core
