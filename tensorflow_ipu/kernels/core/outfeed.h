// The queue between programs and the host that reads them: it never holds a program up, and keeps what nobody has read.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_OUTFEED_H_
#define TENSORFLOW_IPU_KERNELS_CORE_OUTFEED_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/metrics.h"
#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/outcome.h"

namespace tensorflow_ipu::core {

// The bytes of one tensor of an element, as the program holds them.
struct Leaf {
  const void* data;
  std::size_t bytes;
};

// Consecutive elements of one lane, each its leaves one behind the other. Several may be parts of the same memory: what
// was taken of it, and what was not.
struct Rows {
  std::shared_ptr<std::byte[]> data;
  int64_t capacity = 0;  // In rows.
  int64_t begin = 0;
  int64_t end = 0;
};

// Row i of a queue is element i of every lane (replica): it is there to read once all lanes have it.
//
// Thread-safe.
class Outfeed {
 public:
  enum class Mode { kAll, kLast };

  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // What Take found: `count` whole rows, a lane a list of pieces that hold them in order.
  struct Taken {
    int64_t count = 0;
    int64_t lanes = 0;
    int64_t layout = 0;
    std::vector<std::vector<Rows>> pieces;
  };

  Outfeed(std::string name, Mode mode) : name_(std::move(name)), mode_(mode) {}

  Outfeed(const Outfeed&) = delete;
  Outfeed& operator=(const Outfeed&) = delete;

  const std::string& name() const { return name_; }

  // Appends an element (in mode kLast: replaces the lane's one). `layout` is the number of the element's structure,
  // types and shapes; all elements of a queue share one. All that are in it at a time are of as many lanes. Fails where
  // there is no memory for it.
  Outcome Append(int64_t lane, int64_t lanes, int64_t layout, const std::vector<Leaf>& leaves) IPU_EXCLUDES(mutex_);

  // Notes the layout of elements that a program would enqueue if data passed between host and device. Nothing comes.
  void Declare(int64_t layout) IPU_EXCLUDES(mutex_);

  // Hands all whole rows over, `most` at most, and forgets them. When there are none, waits up to `patience` for one.
  // With a `layout` other than 0, hands nothing over where the elements have another: the caller could not read them.
  Taken Take(std::chrono::nanoseconds patience, int64_t layout = 0, int64_t most = kNoLimit) IPU_EXCLUDES(mutex_);

  // Takes rows back that could not be used, as the first ones. In mode kLast a later one is better.
  void PutBack(Taken taken) IPU_EXCLUDES(mutex_);

  // Drops the elements that are no whole row: after a run whose replicas ended at different places, the next starts a
  // row of its own. No program may use the queue meanwhile.
  void Align() IPU_EXCLUDES(mutex_);

  // The number of the elements' layout; 0 as long as none has come.
  int64_t layout() const IPU_EXCLUDES(mutex_);

  // Replicas of the program that enqueued last; 0 as long as none has.
  int64_t lanes() const IPU_EXCLUDES(mutex_);

  // Whole rows that are there to read.
  int64_t ready() const IPU_EXCLUDES(mutex_);

  // What programs have enqueued.
  Passed passed() const IPU_EXCLUDES(mutex_);

  // When the latest row came that a reader waited for: nanoseconds of the monotonic clock; 0 before the first.
  int64_t woken_ns() const IPU_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;

  struct Lane {
    std::deque<Rows> pieces;
    int64_t count = 0;
  };

  Outcome TryAppend(int64_t lane, int64_t lanes, int64_t layout, const std::vector<Leaf>& leaves) IPU_REQUIRES(mutex_);
  Taken TakeReady(int64_t layout, int64_t most) IPU_REQUIRES(mutex_);
  bool Holds() const IPU_REQUIRES(mutex_);  // Whether there is an element that must not be lost.
  int64_t Ready() const IPU_REQUIRES(mutex_);
  // Null where there is no memory for it.
  Rows* PieceWithRoom(Lane* lane) IPU_REQUIRES(mutex_);
  bool HasMemoryFor(std::size_t bytes) IPU_REQUIRES(mutex_);
  std::size_t Unread() const IPU_REQUIRES(mutex_);  // Bytes.
  Outcome Full() const IPU_REQUIRES(mutex_);

  const std::string name_;
  const Mode mode_;

  Condition row_came_;

  mutable Mutex mutex_;
  int64_t readers_ IPU_GUARDED_BY(mutex_) = 0;  // Threads that wait in Take.
  int64_t layout_ IPU_GUARDED_BY(mutex_) = 0;
  std::size_t row_bytes_ IPU_GUARDED_BY(mutex_) = 0;
  int64_t appended_ IPU_GUARDED_BY(mutex_) = 0;  // Elements, of all lanes.
  int64_t woken_ns_ IPU_GUARDED_BY(mutex_) = 0;
  // Bytes that may be allocated before the memory that is left is asked for again.
  std::size_t until_check_ IPU_GUARDED_BY(mutex_) = 0;
  std::vector<Lane> lanes_ IPU_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_OUTFEED_H_
