#include "tensorflow_ipu/kernels/core/outfeed.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tensorflow_ipu/kernels/core/waiting.h"

namespace tensorflow_ipu::core {

namespace {
constexpr std::size_t kLargestPiece = std::size_t{1} << 20;  // Bytes, unless one row is larger.
constexpr int64_t kSmallestPiece = 16;                       // Rows.
}  // namespace

Outcome Outfeed::Append(int64_t lane, int64_t lanes, int64_t layout, const std::vector<Leaf>& leaves) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (interrupted.load(std::memory_order_relaxed)) {
    return Outcome::Cancelled("The run was interrupted while it used the outfeed queue `" + name_ + "`.");
  }
  if (lanes_.empty()) {
    layout_ = layout;
    lanes_ = std::vector<Lane>(lanes);
    for (const Leaf& leaf : leaves) row_bytes_ += leaf.bytes;
  }
  if (layout_ != layout) {
    return Outcome::FailedPrecondition("The outfeed queue `" + name_ +
                                       "` already holds elements of another structure, type or shape. Make a queue "
                                       "for each kind of element.");
  }
  if (static_cast<int64_t>(lanes_.size()) != lanes) {
    if (HoldsLocked()) {
      return Outcome::FailedPrecondition("The outfeed queue `" + name_ + "` holds elements of a program of " +
                                         std::to_string(lanes_.size()) + " replicas; a program of " +
                                         std::to_string(lanes) +
                                         " cannot add to them. Dequeue them first, or make a queue for each.");
    }
    lanes_ = std::vector<Lane>(lanes);
  }
  Lane& to = lanes_[lane];
  if (mode_ == Mode::kLast && to.count == 1) {
    to.pieces.back().end = 0;
    to.count = 0;
  }
  Rows& piece = PieceWithRoom(&to);
  std::byte* at = piece.data.get() + static_cast<std::size_t>(piece.end) * row_bytes_;
  for (const Leaf& leaf : leaves) {
    std::memcpy(at, leaf.data, leaf.bytes);
    at += leaf.bytes;
  }
  ++piece.end;
  ++to.count;
  if (readers_ > 0 && ReadyLocked() > 0) {
    woken_ns_ = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    row_came_.notify_all();
  }
  return Outcome::Ok();
}

void Outfeed::Declare(int64_t layout) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (lanes_.empty()) layout_ = layout;
}

Rows& Outfeed::PieceWithRoom(Lane* lane) {
  if (lane->pieces.empty() || lane->pieces.back().end == lane->pieces.back().capacity) {
    const int64_t most =
        std::max<int64_t>(1, static_cast<int64_t>(kLargestPiece / std::max<std::size_t>(1, row_bytes_)));
    // As much again as is unread: few pieces for long runs, little memory for short ones.
    const int64_t wanted = mode_ == Mode::kLast ? 1 : std::max(kSmallestPiece, lane->count);
    Rows piece;
    piece.capacity = std::min(most, wanted);
    piece.data.reset(new std::byte[static_cast<std::size_t>(piece.capacity) * row_bytes_]);
    lane->pieces.push_back(std::move(piece));
  }
  return lane->pieces.back();
}

Outfeed::Taken Outfeed::Take(std::chrono::nanoseconds patience, int64_t layout) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (patience.count() > 0 && ReadyLocked() == 0) {
    ++readers_;
    row_came_.wait_for(lock, patience, [this] { return ReadyLocked() > 0; });
    --readers_;
  }
  Taken taken;
  taken.layout = layout_;
  if (layout != 0 && layout_ != 0 && layout != layout_) return taken;
  taken.count = ReadyLocked();
  taken.lanes = static_cast<int64_t>(lanes_.size());
  taken.pieces.resize(lanes_.size());
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    Lane& from = lanes_[lane];
    for (int64_t left = taken.count; left > 0;) {
      Rows& piece = from.pieces.front();
      const int64_t rows = std::min(left, piece.end - piece.begin);
      left -= rows;
      if (rows == piece.end - piece.begin) {
        taken.pieces[lane].push_back(std::move(piece));
        from.pieces.pop_front();
        continue;
      }
      // A lane that ran ahead: its piece stays, and the rows that go are copied.
      Rows head;
      head.capacity = head.end = rows;
      head.data.reset(new std::byte[static_cast<std::size_t>(rows) * row_bytes_]);
      std::memcpy(head.data.get(), piece.data.get() + static_cast<std::size_t>(piece.begin) * row_bytes_,
                  static_cast<std::size_t>(rows) * row_bytes_);
      piece.begin += rows;
      taken.pieces[lane].push_back(std::move(head));
    }
    from.count -= taken.count;
  }
  return taken;
}

void Outfeed::Align() {
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t rows = ReadyLocked();
  for (Lane& lane : lanes_) {
    while (lane.count > rows) {
      Rows& piece = lane.pieces.back();
      const int64_t excess = std::min(lane.count - rows, piece.end - piece.begin);
      piece.end -= excess;
      lane.count -= excess;
      if (piece.end == piece.begin) lane.pieces.pop_back();
    }
  }
}

int64_t Outfeed::layout() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return layout_;
}

int64_t Outfeed::lanes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(lanes_.size());
}

int64_t Outfeed::ready() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ReadyLocked();
}

int64_t Outfeed::woken_ns() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return woken_ns_;
}

bool Outfeed::HoldsLocked() const {
  if (mode_ == Mode::kLast) return false;  // A new one takes the place of what is there.
  return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.count > 0; });
}

int64_t Outfeed::ReadyLocked() const {
  if (lanes_.empty()) return 0;
  int64_t least = lanes_.front().count;
  for (const Lane& lane : lanes_) least = std::min(least, lane.count);
  return least;
}

}  // namespace tensorflow_ipu::core
