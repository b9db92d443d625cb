#include "tensorflow_ipu/kernels/core/outfeed.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "tensorflow_ipu/kernels/core/process.h"
#include "tensorflow_ipu/kernels/core/tuning.h"
#include "tensorflow_ipu/kernels/core/waiting.h"

namespace tensorflow_ipu::core {

Outcome Outfeed::Append(int64_t lane, int64_t lanes, int64_t layout, const std::vector<Leaf>& leaves) {
  bool awaited = false;
  {
    const Lock lock(mutex_);
    Outcome why_not = TryAppend(lane, lanes, layout, leaves);
    if (!why_not.ok()) return why_not;
    awaited = readers_ > 0 && Ready() > 0;
    if (awaited) woken_ns_ = Clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  if (awaited) row_came_.NotifyAll();
  return Outcome::Ok();
}

Outcome Outfeed::TryAppend(int64_t lane, int64_t lanes, int64_t layout, const std::vector<Leaf>& leaves) {
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
    if (Holds()) {
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
  Rows* const piece = PieceWithRoom(&to);
  if (piece == nullptr) return Full();
  std::byte* at = piece->data.get() + static_cast<std::size_t>(piece->end) * row_bytes_;
  for (const Leaf& leaf : leaves) {
    std::memcpy(at, leaf.data, leaf.bytes);
    at += leaf.bytes;
  }
  ++piece->end;
  ++to.count;
  ++appended_;
  return Outcome::Ok();
}

void Outfeed::Declare(int64_t layout) {
  const Lock lock(mutex_);
  if (lanes_.empty()) layout_ = layout;
}

Rows* Outfeed::PieceWithRoom(Lane* lane) {
  if (!lane->pieces.empty() && lane->pieces.back().end < lane->pieces.back().capacity) return &lane->pieces.back();
  const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(kMostBytes / std::max<std::size_t>(1, row_bytes_)));
  // As much again as is unread: few pieces for long runs, little memory for short ones.
  const int64_t wanted = mode_ == Mode::kLast ? 1 : std::max<int64_t>(1, lane->count);
  Rows piece;
  piece.capacity = std::min(most, wanted);
  const std::size_t bytes = static_cast<std::size_t>(piece.capacity) * row_bytes_;
  if (!HasMemoryFor(bytes)) return nullptr;
  try {
    piece.data.reset(new std::byte[bytes]);
    lane->pieces.push_back(std::move(piece));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  return &lane->pieces.back();
}

// The kernel overcommits memory and then kills the process: too late for a message.
bool Outfeed::HasMemoryFor(std::size_t bytes) {
  if (bytes <= until_check_) {
    until_check_ -= bytes;
    return true;
  }
  // A short queue does not fill the memory.
  if (Unread() >= kUncheckedBytes && AvailableMemory() < bytes + kSpareBytes) return false;
  until_check_ = kUncheckedBytes;
  return true;
}

std::size_t Outfeed::Unread() const {
  std::size_t rows = 0;
  for (const Lane& lane : lanes_) rows += static_cast<std::size_t>(lane.count);
  return rows * row_bytes_;
}

Outcome Outfeed::Full() const {
  return {
      Code::kResourceExhausted,
      "There is no memory for another element of the outfeed queue `" + name_ + "`, which holds " +
          std::to_string(Ready()) + " elements that nobody has read, " + std::to_string(Unread() >> 20) +
          " MiB. They stay: `dequeue` them, with `max_elements` a part at a time. Have another thread dequeue while "
          "the program runs, run fewer iterations at once, enqueue less, or keep the last element alone "
          "(`IPUOutfeedMode.LAST`)."};
}

Outfeed::Taken Outfeed::Take(std::chrono::nanoseconds patience, int64_t layout, int64_t most) {
  Lock lock(mutex_);
  ++readers_;
  row_came_.WaitFor(lock, patience, [this]() IPU_REQUIRES(mutex_) { return Ready() > 0; });
  --readers_;
  return TakeReady(layout, most);
}

Outfeed::Taken Outfeed::TakeReady(int64_t layout, int64_t most) {
  Taken taken;
  taken.layout = layout_;
  if (layout != 0 && layout_ != 0 && layout != layout_) return taken;
  taken.count = std::min(most, Ready());
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
      // Both share the memory; later rows follow these.
      Rows head = piece;
      head.capacity = head.end = piece.begin + rows;
      piece.begin += rows;
      taken.pieces[lane].push_back(std::move(head));
    }
    from.count -= taken.count;
  }
  return taken;
}

void Outfeed::PutBack(Taken taken) {
  const Lock lock(mutex_);
  if (mode_ == Mode::kLast && Ready() > 0) return;
  if (taken.pieces.size() != lanes_.size()) {
    if (Holds()) return;  // Elements of another program came meanwhile.
    lanes_ = std::vector<Lane>(taken.pieces.size());
  }
  for (std::size_t lane = 0; lane < taken.pieces.size(); ++lane) {
    Lane& to = lanes_[lane];
    for (auto piece = taken.pieces[lane].rbegin(); piece != taken.pieces[lane].rend(); ++piece) {
      piece->capacity = piece->end;  // Room after its rows may belong to another piece.
      to.pieces.push_front(std::move(*piece));
    }
    to.count += taken.count;
  }
}

void Outfeed::Align() {
  const Lock lock(mutex_);
  const int64_t rows = Ready();
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
  const Lock lock(mutex_);
  return layout_;
}

int64_t Outfeed::lanes() const {
  const Lock lock(mutex_);
  return static_cast<int64_t>(lanes_.size());
}

int64_t Outfeed::ready() const {
  const Lock lock(mutex_);
  return Ready();
}

Passed Outfeed::passed() const {
  const Lock lock(mutex_);
  return {appended_, appended_ * static_cast<int64_t>(row_bytes_), 0, 0};
}

bool Outfeed::Holds() const {
  if (mode_ == Mode::kLast) return false;
  return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.count > 0; });
}

int64_t Outfeed::woken_ns() const {
  const Lock lock(mutex_);
  return woken_ns_;
}

int64_t Outfeed::Ready() const {
  if (lanes_.empty()) return 0;
  int64_t least = lanes_.front().count;
  for (const Lane& lane : lanes_) least = std::min(least, lane.count);
  return least;
}

}  // namespace tensorflow_ipu::core
