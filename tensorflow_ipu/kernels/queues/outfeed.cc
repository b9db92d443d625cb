#include "tensorflow_ipu/kernels/queues/outfeed.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "tensorflow_ipu/kernels/support/process.h"
#include "tensorflow_ipu/kernels/support/tuning.h"
#include "tensorflow_ipu/kernels/support/waiting.h"

namespace tensorflow_ipu::core {

absl::Status Outfeed::Append(int64_t replica, int64_t replicas, int64_t layout, const std::vector<Leaf>& leaves) {
  const absl::MutexLock lock(&mutex_);
  absl::Status why_not = TryAppend(replica, replicas, layout, leaves);
  if (why_not.ok() && readers_ > 0 && Ready() > 0) woken_ns_ = Clock::now().time_since_epoch().count();
  return why_not;
}

absl::Status Outfeed::TryAppend(int64_t replica, int64_t replicas, int64_t layout, const std::vector<Leaf>& leaves) {
  if (!open_) return Deleted();
  if (replicas_.empty()) {
    layout_ = layout;
    replicas_ = std::vector<Replica>(replicas);
    for (const Leaf& leaf : leaves) row_bytes_ += leaf.bytes;
  }
  if (layout_ != layout) {
    return absl::FailedPreconditionError("The outfeed queue `" + name_ +
                                         "` already holds elements of another structure, type or shape. Create a queue "
                                         "for each kind of element.");
  }
  if (static_cast<int64_t>(replicas_.size()) != replicas) {
    if (Holds()) {
      return absl::FailedPreconditionError("The outfeed queue `" + name_ + "` holds elements of a program of " +
                                           std::to_string(replicas_.size()) + " replicas; a program of " +
                                           std::to_string(replicas) +
                                           " cannot add to them. Dequeue them first, or create a queue for each.");
    }
    replicas_ = std::vector<Replica>(replicas);
  }
  Replica& to = replicas_[replica];
  // After an interrupt, the first element usually belongs to the step in progress, which may finish. If the step were
  // ended, it could leave variables half updated: XLA reuses their memory for other values after their last use.
  if (interrupted.load(std::memory_order_relaxed) &&
      std::exchange(to.interrupt, last_interrupt.load()) == last_interrupt) {
    return absl::CancelledError("The run was interrupted while it used the outfeed queue `" + name_ + "`.");
  }
  if (mode_ == Mode::kLast && to.count == 1) {
    to.pieces.back().end = 0;
    to.count = 0;
  }
  Rows* const piece = PieceWithRoom(&to);
  if (piece == nullptr) return Full();
  std::byte* destination = piece->data.get() + static_cast<std::size_t>(piece->end) * row_bytes_;
  for (const Leaf& leaf : leaves) {
    std::memcpy(destination, leaf.data, leaf.bytes);
    destination += leaf.bytes;
  }
  ++piece->end;
  ++to.count;
  ++appended_;
  return absl::OkStatus();
}

void Outfeed::Declare(int64_t layout) {
  const absl::MutexLock lock(&mutex_);
  if (replicas_.empty()) layout_ = layout;
}

Rows* Outfeed::PieceWithRoom(Replica* replica) {
  if (!replica->pieces.empty() && replica->pieces.back().end < replica->pieces.back().capacity)
    return &replica->pieces.back();
  const int64_t largest = std::max<int64_t>(1, static_cast<int64_t>(kMostBytes / std::max<std::size_t>(1, row_bytes_)));
  // The capacity is the number of unread elements: few pieces for long runs, little memory for short ones.
  const int64_t capacity = mode_ == Mode::kLast ? 1 : std::max<int64_t>(1, replica->count);
  Rows piece;
  piece.capacity = std::min(largest, capacity);
  const std::size_t bytes = static_cast<std::size_t>(piece.capacity) * row_bytes_;
  if (!HasMemoryFor(bytes)) return nullptr;
  try {
    piece.data.reset(new std::byte[bytes]);
    replica->pieces.push_back(std::move(piece));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  return &replica->pieces.back();
}

// Checks the available memory before an allocation. The kernel would overcommit memory and later kill the process,
// without a message.
bool Outfeed::HasMemoryFor(std::size_t bytes) {
  if (bytes <= until_check_) {
    until_check_ -= bytes;
    return true;
  }
  // A short queue cannot fill the memory.
  if (UnreadBytes() >= kUncheckedBytes && AvailableMemory() < bytes + kSpareBytes) return false;
  until_check_ = kUncheckedBytes;
  return true;
}

std::size_t Outfeed::UnreadBytes() const {
  std::size_t rows = 0;
  for (const Replica& replica : replicas_) rows += static_cast<std::size_t>(replica.count);
  return rows * row_bytes_;
}

absl::Status Outfeed::Full() const {
  return absl::ResourceExhaustedError(
      "There is no memory for another element of the outfeed queue `" + name_ + "`, which holds " +
      std::to_string(Ready()) + " unread elements (" + std::to_string(UnreadBytes() >> 20) +
      " MiB). They stay in the queue: `dequeue` them, a part at a time with `max_elements`. Let another thread dequeue "
      "while the program runs, run fewer iterations at once, enqueue less, or keep only the last element "
      "(`IPUOutfeedMode.LAST`).");
}

Outfeed::Taken Outfeed::Take(std::chrono::nanoseconds timeout, int64_t layout, int64_t most) {
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Ready() > 0; };
  const absl::MutexLock lock(&mutex_);
  ++readers_;
  mutex_.AwaitWithTimeout(absl::Condition(&ready), absl::FromChrono(timeout));
  --readers_;
  return TakeReady(layout, most);
}

Outfeed::Taken Outfeed::TakeReady(int64_t layout, int64_t most) {
  Taken taken;
  taken.layout = layout_;
  if (layout != 0 && layout_ != 0 && layout != layout_) return taken;
  taken.count = std::min(most, Ready());
  taken.replicas = static_cast<int64_t>(replicas_.size());
  taken.pieces.resize(replicas_.size());
  for (std::size_t replica = 0; replica < replicas_.size(); ++replica) {
    Replica& from = replicas_[replica];
    for (int64_t remaining = taken.count; remaining > 0;) {
      Rows& piece = from.pieces.front();
      const int64_t rows = std::min(remaining, piece.end - piece.begin);
      remaining -= rows;
      if (rows == piece.end - piece.begin) {
        taken.pieces[replica].push_back(std::move(piece));
        from.pieces.pop_front();
        continue;
      }
      // Both parts share the memory; the later rows stay in the queue.
      Rows head = piece;
      head.capacity = head.end = piece.begin + rows;
      piece.begin += rows;
      taken.pieces[replica].push_back(std::move(head));
    }
    from.count -= taken.count;
  }
  return taken;
}

void Outfeed::PutBack(Taken taken) {
  const absl::MutexLock lock(&mutex_);
  if (!open_) return;
  if (mode_ == Mode::kLast && Ready() > 0) return;
  if (taken.pieces.size() != replicas_.size()) {
    if (Holds()) return;  // Elements of another program have arrived in the meantime.
    replicas_ = std::vector<Replica>(taken.pieces.size());
  }
  for (std::size_t replica = 0; replica < taken.pieces.size(); ++replica) {
    Replica& to = replicas_[replica];
    for (auto piece = taken.pieces[replica].rbegin(); piece != taken.pieces[replica].rend(); ++piece) {
      piece->capacity = piece->end;  // The memory after its rows may belong to another piece.
      to.pieces.push_front(std::move(*piece));
    }
    to.count += taken.count;
  }
}

void Outfeed::Align() {
  const absl::MutexLock lock(&mutex_);
  const int64_t rows = Ready();
  for (Replica& replica : replicas_) {
    while (replica.count > rows) {
      Rows& piece = replica.pieces.back();
      const int64_t excess = std::min(replica.count - rows, piece.end - piece.begin);
      piece.end -= excess;
      replica.count -= excess;
      if (piece.end == piece.begin) replica.pieces.pop_back();
    }
  }
}

void Outfeed::Close() {
  std::vector<Replica> dropped;  // Freed after the lock is released: it may be large.
  std::size_t bytes = 0;
  {
    const absl::MutexLock lock(&mutex_);
    open_ = false;
    bytes = UnreadBytes();
    dropped.swap(replicas_);
  }
  dropped.clear();
  if (bytes >= kReturnedBytes) ReturnFreedMemory();
}

absl::Status Outfeed::Deleted() {
  return absl::NotFoundError(
      "The outfeed queue of this program was deleted. Keep the queue as long as programs use it.");
}

bool Outfeed::Holds() const {
  if (mode_ == Mode::kLast) return false;
  return std::any_of(replicas_.begin(), replicas_.end(), [](const Replica& replica) { return replica.count > 0; });
}

int64_t Outfeed::Ready() const {
  if (replicas_.empty()) return 0;
  int64_t least = replicas_.front().count;
  for (const Replica& replica : replicas_) least = std::min(least, replica.count);
  return least;
}

}  // namespace tensorflow_ipu::core
