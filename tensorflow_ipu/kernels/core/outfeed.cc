#include "tensorflow_ipu/kernels/core/outfeed.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "tensorflow_ipu/kernels/core/memory.h"
#include "tensorflow_ipu/kernels/core/tuning.h"
#include "tensorflow_ipu/kernels/core/waiting.h"

namespace tensorflow_ipu::core {

namespace {

// Has the calling thread wake by the clock as soon as it can, where the system would wake it with others by habit.
class PunctualWake {
 public:
  PunctualWake() : slack_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, 1); }
  ~PunctualWake() {
    if (slack_ > 0) prctl(PR_SET_TIMERSLACK, slack_);
  }

  PunctualWake(const PunctualWake&) = delete;
  PunctualWake& operator=(const PunctualWake&) = delete;

 private:
  const int slack_;  // In nanoseconds.
};

}  // namespace

Outcome Outfeed::Append(int64_t lane, int64_t lanes, int64_t layout, const std::vector<Leaf>& leaves) {
  bool awaited = false;
  {
    const SpinLock lock(mutex_);
    Outcome why_not = TryAppend(lane, lanes, layout, leaves);
    if (!why_not.ok()) return why_not;
    awaited = readers_ > 0 && Ready() > 0;
    if (awaited) {
      program_on_ = sched_getcpu();
      woken_ns_ = Clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    }
  }
  if (awaited) {
    {
      const Lock asleep(sleep_mutex_);
    }  // A reader that has found nothing sleeps by now, and hears of it.
    row_came_.NotifyAll();
  }
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
  const SpinLock lock(mutex_);
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

// The kernel overcommits memory, and kills the process that uses it: too late for a message.
bool Outfeed::HasMemoryFor(std::size_t bytes) {
  if (bytes <= until_check_) {
    until_check_ -= bytes;
    return true;
  }
  // A short queue is not what fills the memory.
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
  const Clock::time_point end = Clock::now() + patience;
  for (;;) {
    {
      const SpinLock lock(mutex_);
      if (Ready() > 0 || Clock::now() >= end) return TakeReady(layout, most);
    }
    AwaitRow(end);  // Another reader may be first.
  }
}

void Outfeed::AwaitRow(Clock::time_point end) {
  int64_t woken_before = 0;
  std::optional<Arrivals::Due> due;
  {
    const SpinLock lock(mutex_);
    ++readers_;
    woken_before = woken_ns_;
    if (Ready() == 0) due = arrivals_.Next(RowsInAll());
  }
  if (!due.has_value() || due->to > end || !AwaitDueRow(*due, woken_before)) {
    // Who has just computed and sleeps owes others their turns. A reader on the processor of a program that mostly
    // waits pays while it has nothing to do, so that the program does not get a turn before it when the row comes.
    // Beside one that computes all the time it would owe them more by that.
    if (due.has_value() && sched_getcpu() == program_on_) std::this_thread::yield();
    Lock lock(sleep_mutex_);
    row_came_.WaitFor(lock, end - Clock::now(), [this] { return ready() > 0; });
  }
  const SpinLock lock(mutex_);
  --readers_;
  if (woken_ns_ != woken_before) arrivals_.Came(Clock::time_point(std::chrono::nanoseconds(woken_ns_)), RowsInAll());
}

bool Outfeed::AwaitDueRow(const Arrivals::Due& due, int64_t woken_before) {
  if (sched_getcpu() == program_on_) return false;
  const Clock::time_point wake_at = due.from - kClockWake;
  if (Clock::now() < wake_at) {
    const PunctualWake punctual;
    Lock lock(sleep_mutex_);
    if (row_came_.WaitFor(lock, wake_at - Clock::now(), [this] { return ready() > 0; })) return true;
  }
  return SpinForRow(due, woken_before);
}

bool Outfeed::SpinForRow(const Arrivals::Due& due, int64_t woken_before) {
  const Clock::time_point begin = Clock::now();
  const Clock::time_point end = std::min(due.to, begin + due.spin);
  bool came = woken_ns_ != woken_before;
  for (auto now = begin; !came && now < end && sched_getcpu() != program_on_; now = Clock::now()) {
    for (int i = 0; i < kTriesBetweenLooks && !came; ++i) {
      Pause();
      came = woken_ns_ != woken_before;
    }
    if (!came) std::this_thread::yield();  // Whoever else wants this core may have it.
  }
  const SpinLock lock(mutex_);
  arrivals_.Spun(Clock::now() - begin);
  return came;
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
      // The memory is both's. What is appended comes behind the rows that go.
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
  const SpinLock lock(mutex_);
  if (mode_ == Mode::kLast && Ready() > 0) return;
  if (taken.pieces.size() != lanes_.size()) {
    if (Holds()) return;  // Another program's elements, which cannot stand beside these, came meanwhile.
    lanes_ = std::vector<Lane>(taken.pieces.size());
  }
  for (std::size_t lane = 0; lane < taken.pieces.size(); ++lane) {
    Lane& to = lanes_[lane];
    for (auto piece = taken.pieces[lane].rbegin(); piece != taken.pieces[lane].rend(); ++piece) {
      piece->capacity = piece->end;  // Room behind its rows may have become another piece's.
      to.pieces.push_front(std::move(*piece));
    }
    to.count += taken.count;
  }
}

void Outfeed::Align() {
  const SpinLock lock(mutex_);
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
  const SpinLock lock(mutex_);
  return layout_;
}

int64_t Outfeed::lanes() const {
  const SpinLock lock(mutex_);
  return static_cast<int64_t>(lanes_.size());
}

int64_t Outfeed::ready() const {
  const SpinLock lock(mutex_);
  return Ready();
}

Passed Outfeed::passed() const {
  const SpinLock lock(mutex_);
  return {appended_, appended_ * static_cast<int64_t>(row_bytes_), 0, 0};
}

bool Outfeed::Holds() const {
  if (mode_ == Mode::kLast) return false;  // A new one takes the place of what is there.
  return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.count > 0; });
}

int64_t Outfeed::RowsInAll() const { return lanes_.empty() ? 0 : appended_ / static_cast<int64_t>(lanes_.size()); }

int64_t Outfeed::Ready() const {
  if (lanes_.empty()) return 0;
  int64_t least = lanes_.front().count;
  for (const Lane& lane : lanes_) least = std::min(least, lane.count);
  return least;
}

}  // namespace tensorflow_ipu::core
