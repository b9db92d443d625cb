// The queue between one pass over a dataset and the programs that it feeds: bounded, closable, in the dataset's order.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_INFEED_H_
#define TENSORFLOW_IPU_KERNELS_CORE_INFEED_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow_ipu/kernels/core/deadlines.h"
#include "tensorflow_ipu/kernels/core/executor.h"
#include "tensorflow_ipu/kernels/core/groups.h"
#include "tensorflow_ipu/kernels/core/hand.h"
#include "tensorflow_ipu/kernels/core/outcome.h"
#include "tensorflow_ipu/kernels/core/ring.h"
#include "tensorflow_ipu/kernels/core/room.h"
#include "tensorflow_ipu/kernels/core/waiting.h"

namespace tensorflow_ipu::core {

//   pump --Push--> [ t+2 | t+1 | t ] --Take / TakeLater--> lane (t % lanes)
//
// Element t * lanes + r goes to lane r as its element t: a lane is a replica of the program, and how many there are is
// known only when a program takes for the first time. Row t is ready once all its elements are, so that an incomplete
// last row reaches no lane, however the threads' times fall. Elements ready for lanes that lag stay until they are
// taken.
//
// Replicas may share: then a row has an element a group, and all replicas of group g get the row's element g.
//
// Only the pump blocks (in Push and AwaitUse, until there is room or use, or the queue is closed). A program never
// does: it takes what is ready, or leaves word where to deliver (TakeLater), which happens on a thread of the executor.
//
// Thread-safe, but for Push, AwaitUse and End, which are one thread's; lives in a shared_ptr.
template <typename Element>
class Infeed : public std::enable_shared_from_this<Infeed<Element>> {
 public:
  // Gets the element, or why there is none (then the element is empty).
  using Deliver = std::function<void(Outcome, Element)>;
  enum class Took { kElement, kNothing, kFailed };

  Infeed(std::string name, int64_t depth, Grouping sharing = {1, false})
      : name_(std::move(name)), sharing_(sharing), room_(depth) {}

  Infeed(const Infeed&) = delete;
  Infeed& operator=(const Infeed&) = delete;

  // Nobody is left without an answer.
  ~Infeed() { Close(); }

  const std::string& name() const { return name_; }

  // The pump's call: appends an element of so many bytes, after a wait for room. Cancelled once the queue is closed. In
  // exchange `element` becomes what a Take has left in its place, so that memory goes to and fro, and is not freed on
  // another thread than it came from.
  Outcome Push(Element&& element, std::size_t bytes) {
    const auto has_room = [this] { return pushed_ - taken_ < room_.elements() || !open_; };
    std::unique_lock<std::mutex> lock = LockSoon(mutex_);
    if (!has_room()) room_.RanFull();
    room_.SetBytes(bytes);
    producer_sleeps_ = true;
    room_made_.wait(lock, has_room);
    producer_sleeps_ = false;
    if (!open_) return Closed();
    slots_.MakePlace(taken_, pushed_);
    Slot& slot = slots_[pushed_];
    std::swap(slot.element, element);
    slot.left = shares_;
    pushed_.store(pushed_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    if (lanes_ == 0 || pushed_ % width_ != 0) return Outcome::Ok();
    for (int64_t lane = 0; lane < lanes_; ++lane) {
      if (!waiters_[lane].empty()) Serve(lane);
    }
    return Outcome::Ok();
  }

  // The pump's last call: no element follows, for this reason (the dataset's end is OutOfRange).
  void End(Outcome why) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!open_) return;
    end_ = std::move(why);
    for (int64_t lane = 0; lane < lanes_; ++lane) {
      FailWaiters(lane, *end_);  // They wait for a row that is not whole, and now never will be.
    }
  }

  // The pump's call: waits until a program has asked for an element. Returns false where the queue is closed instead.
  bool AwaitUse() {
    std::unique_lock<std::mutex> lock(mutex_);
    room_made_.wait(lock, [this] { return lanes_ != 0 || !open_; });
    return open_;
  }

  // Takes this lane's next element if it is ready; kNothing while it still may come. On kFailed `*why` says why. What
  // `*element` was stays in the queue for the pump (see Push), and should hold no more than memory.
  Took Take(int64_t lane, int64_t lanes, Element* element, Outcome* why) {
    Hand<Element>* const hand = HandOf(lane, lanes, why);
    if (hand == nullptr) return Took::kFailed;
    const std::unique_lock<std::mutex> hand_lock = LockSoon(hand->mutex);
    if (Stopped()) {
      *why = WhyStopped();
      return Took::kFailed;
    }
    if (hand->count() == 0) {
      const std::unique_lock<std::mutex> lock = LockSoon(mutex_);
      *why = Refusal(lane, lanes);
      if (!why->ok()) return Took::kFailed;
      if (waiters_[lane].empty()) {
        hand->Refill(room_.hand(), [&](Element* place) { return Pop(lane, place); });
      }
      if (hand->count() == 0) {
        room_.RanEmpty();
        return Took::kNothing;
      }
    }
    hand->Take(element);
    return Took::kElement;
  }

  // Spins for a moment for this lane's next element. Returns whether a Take is worth another try. How long a moment is
  // follows from how long elements were waited for lately: a slow dataset should not cost a core.
  bool Linger(int64_t lane) {
    int64_t wanted;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (lanes_ != 1) return false;  // Replicas together would hold up the very cores that they wait for.
      wanted = NextOf(lane);
    }
    return SpinUntil(std::chrono::nanoseconds(patience_ns_), [&] { return pushed_ > wanted || !open_; });
  }

  // Delivers this lane's next element: at once and on this thread if it is ready, else on a thread of the executor when
  // it comes, when the queue ends or is closed, or when the limit for waits is over.
  void TakeLater(int64_t lane, int64_t lanes, Deliver deliver) {
    Element element;
    Outcome why;
    if (Hand<Element>* const hand = HandOf(lane, lanes, &why)) {
      std::lock_guard<std::mutex> hand_lock(hand->mutex);
      if (Stopped()) {
        why = WhyStopped();
      } else if (hand->count() > 0) {
        hand->Take(&element);
      } else {
        std::lock_guard<std::mutex> lock(mutex_);
        why = Refusal(lane, lanes);
        if (why.ok() && (!waiters_[lane].empty() || !Pop(lane, &element))) {
          Wait(lane, std::move(deliver));
          return;
        }
      }
    }
    deliver(std::move(why), std::move(element));
  }

  // Drops what is ready, ends the pump's Push, and fails those who wait or come later. Final.
  void Close() {
    Ring<Slot> dropped;  // Goes after the lock: elements may be large, or not ours alone.
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_ = false;
      std::swap(dropped, slots_);
      taken_ = pushed_;
      for (int64_t lane = 0; lane < lanes_; ++lane) FailWaiters(lane, Closed());
      room_made_.notify_all();
    }
    std::vector<std::vector<Element>> folded;
    ForEachHand([&](int64_t, Hand<Element>* hand) { folded.push_back(hand->Fold()); });
  }

  // Fails those who wait (see `interrupted`); the queue and its elements stay.
  void Interrupt() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int64_t lane = 0; lane < lanes_; ++lane) FailWaiters(lane, Interrupted());
  }

  // Brings all lanes to the row of the one that is furthest: after a run whose replicas ended at different places, the
  // next starts with a whole row. No program may use the queue meanwhile.
  void Align() {
    int64_t furthest = 0;
    ForEachHand([&](int64_t lane, Hand<Element>* hand) {
      std::lock_guard<std::mutex> lock(mutex_);
      furthest = std::max(furthest, rows_[lane] - static_cast<int64_t>(hand->count()));
    });
    ForEachHand([&](int64_t lane, Hand<Element>* hand) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!open_) return;
      for (int64_t behind = furthest - rows_[lane] + static_cast<int64_t>(hand->count()); behind > 0; --behind) {
        Element dropped;
        if (hand->count() > 0) {
          hand->Take(&dropped);
        } else if (!Pop(lane, &dropped)) {
          return;
        }
      }
    });
  }

  // Elements that were pushed and not yet taken, where lanes share them by all.
  int64_t ready() const {
    std::vector<int64_t> dealt;  // To each lane, and not yet taken.
    ForEachHand([&](int64_t, const Hand<Element>* hand) { dealt.push_back(static_cast<int64_t>(hand->count())); });
    std::lock_guard<std::mutex> lock(mutex_);
    if (!open_ || dealt.empty()) return pushed_ - taken_;
    std::vector<int64_t> rows(width_, pushed_);  // What each element of a row is at.
    for (std::size_t lane = 0; lane < dealt.size(); ++lane) {
      int64_t& row = rows[ColumnOf(lane)];
      row = std::min(row, rows_[lane] - dealt[lane]);
    }
    return std::accumulate(rows.begin(), rows.end(), pushed_.load(), std::minus<int64_t>());
  }

  // Programs that wait for an element.
  int64_t waiting() const {
    std::lock_guard<std::mutex> lock(mutex_);
    int64_t count = 0;
    for (const auto& lane : waiters_) count += static_cast<int64_t>(lane.size());
    return count;
  }

 private:
  struct Slot {
    Element element{};
    int64_t left = 0;  // How many lanes have yet to take it.
  };

  struct Waiter {
    int64_t number;
    Deliver deliver;
    Deadlines::Clock::time_point since;
    std::optional<Deadlines::Ticket> deadline;
  };

  static constexpr int64_t kPatienceMost = 20000;
  static constexpr int64_t kPatienceLeast = 500;

  // The lane's hand, or null and why the queue refuses the program. Needs no lock held, as the next four do not.
  Hand<Element>* HandOf(int64_t lane, int64_t lanes, Outcome* why) {
    if (lanes_.load(std::memory_order_acquire) != lanes) {
      std::lock_guard<std::mutex> lock(mutex_);
      *why = Refusal(lane, lanes);
      if (!why->ok()) return nullptr;
    }
    return &hands_[lane];
  }

  // Calls `visit(lane, hand)` for each, with its mutex held.
  template <typename Visit>
  void ForEachHand(Visit visit) const {
    const int64_t lanes = lanes_.load(std::memory_order_acquire);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      std::lock_guard<std::mutex> lock(hands_[lane].mutex);
      visit(lane, &hands_[lane]);
    }
  }

  bool Stopped() const { return !open_ || interrupted.load(std::memory_order_relaxed); }

  Outcome WhyStopped() const { return open_ ? Interrupted() : Closed(); }

  // All private members below that are not atomic are guarded by mutex_, and all functions below need it held. Whoever
  // holds the mutex of a hand too has locked that first.

  // Which element of each row the lane gets.
  int64_t ColumnOf(int64_t lane) const { return shares_ == 1 ? lane : Group::Of(sharing_, lane, lanes_).number; }

  int64_t NextOf(int64_t lane) const { return rows_[lane] * width_ + ColumnOf(lane); }

  // Whether the row that this lane is at is ready.
  bool Whole(int64_t lane) const { return (rows_[lane] + 1) * width_ <= pushed_; }

  Outcome Closed() const {
    return Outcome::Cancelled("The infeed queue `" + name_ + "` was deleted or restarted while a program used it.");
  }

  Outcome Interrupted() const {
    return Outcome::Cancelled("The run was interrupted while it used the infeed queue `" + name_ + "`.");
  }

  Outcome Refusal(int64_t lane, int64_t lanes) {
    if (Stopped()) return WhyStopped();
    if (lanes_ == 0) {
      if (!sharing_.Divides(lanes)) {
        return Outcome::InvalidArgument("The infeed queue `" + name_ + "` shares its elements in groups of " +
                                        std::to_string(sharing_.size) + " replicas, and the program has " +
                                        std::to_string(lanes) + ". Make the group size a divisor of that.");
      }
      shares_ = sharing_.size == 0 ? lanes : sharing_.size;
      width_ = lanes / shares_;
      for (int64_t index = taken_; index < pushed_; ++index) slots_[index].left = shares_;
      rows_.assign(lanes, 0);
      waiters_.resize(lanes);
      hands_ = std::make_unique<Hand<Element>[]>(lanes);
      lanes_.store(lanes, std::memory_order_release);
      room_.SetWidth(width_);
      room_made_.notify_all();
    }
    if (lanes_ != lanes) {
      return Outcome::FailedPrecondition("The infeed queue `" + name_ + "` already feeds a program of " +
                                         std::to_string(lanes_) + " replicas; a program of " + std::to_string(lanes) +
                                         " cannot share it. Make a queue for each.");
    }
    return end_.has_value() && !Whole(lane) ? *end_ : Outcome::Ok();
  }

  bool Pop(int64_t lane, Element* element) {
    if (!Whole(lane)) return false;
    Slot& slot = slots_[NextOf(lane)];
    if (--slot.left == 0) {
      std::swap(*element, slot.element);
    } else {
      *element = slot.element;
    }
    ++rows_[lane];
    while (taken_ < pushed_ && slots_[taken_].left == 0) ++taken_;
    // Refilled by halves, so that one wake of the pump serves several elements; but what is left of a row that is not
    // whole can be more than half, and nobody takes from it.
    const int64_t left = pushed_ - taken_;
    if (producer_sleeps_ && (2 * left <= room_.elements() || left < width_)) room_made_.notify_one();
    return true;
  }

  void Wait(int64_t lane, Deliver deliver) {
    Waiter waiter{next_waiter_++, std::move(deliver), Deadlines::Clock::now(), std::nullopt};
    const int64_t limit = wait_limit_ns;
    if (limit > 0) {
      waiter.deadline = Deadlines::Global().Add(Deadlines::Clock::now() + std::chrono::nanoseconds(limit),
                                                [weak = this->weak_from_this(), lane, number = waiter.number, limit] {
                                                  if (const auto self = weak.lock()) self->GiveUp(lane, number, limit);
                                                });
    }
    waiters_[lane].push_back(std::move(waiter));
  }

  void Serve(int64_t lane) {
    Element element;
    Pop(lane, &element);
    Waiter waiter = std::move(waiters_[lane].front());
    waiters_[lane].pop_front();
    const bool worth_a_spin = Deadlines::Clock::now() - waiter.since < std::chrono::nanoseconds(kPatienceMost);
    patience_ns_ = worth_a_spin ? kPatienceMost : std::max<int64_t>(kPatienceLeast, patience_ns_ / 2);
    HandOver(std::move(waiter), Outcome::Ok(), std::move(element));
  }

  void FailWaiters(int64_t lane, const Outcome& why) {
    for (Waiter& waiter : waiters_[lane]) HandOver(std::move(waiter), why, Element());
    waiters_[lane].clear();
  }

  void GiveUp(int64_t lane, int64_t number, int64_t limit) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (lane >= lanes_) return;
    auto& line = waiters_[lane];
    for (auto waiter = line.begin(); waiter != line.end(); ++waiter) {
      if (waiter->number != number) continue;
      waiter->deadline.reset();
      HandOver(std::move(*waiter),
               Outcome::DeadlineExceeded("The program waited " + std::to_string(limit / 1000000) +
                                         " ms for an element of the infeed queue `" + name_ +
                                         "`, the limit for waits. Speed the dataset up, or raise the limit with "
                                         "`feeds.set_wait_limit`."),
               Element());
      line.erase(waiter);
      return;
    }
  }

  // Off this thread, since what is delivered may be the rest of a whole program.
  static void HandOver(Waiter waiter, Outcome why, Element element) {
    if (waiter.deadline.has_value()) Deadlines::Global().Remove(*waiter.deadline);
    Executor::Global().Run([deliver = std::move(waiter.deliver), why = std::move(why),
                            element = std::move(element)](const Outcome& started) mutable {
      deliver(started.ok() ? std::move(why) : started, std::move(element));
    });
  }

  const std::string name_;
  const Grouping sharing_;  // Which lanes get the same elements.

  mutable std::mutex mutex_;
  std::condition_variable room_made_;
  Room room_;
  bool producer_sleeps_ = false;
  Ring<Slot> slots_;   // Elements by number, from taken_ to pushed_.
  int64_t taken_ = 0;  // Elements before this one are taken by all.
  std::optional<Outcome> end_;
  int64_t shares_ = 1;         // Lanes that get the same element.
  int64_t width_ = 0;          // Elements of a row.
  std::vector<int64_t> rows_;  // A lane: how many elements it was dealt.
  std::vector<std::deque<Waiter>> waiters_;
  int64_t next_waiter_ = 0;

  // Written under mutex_; read without it by those who spin.
  std::atomic<int64_t> pushed_{0};
  std::atomic<int64_t> patience_ns_{kPatienceMost};

  // Read with each Take: on a cache line that hardly changes.
  alignas(64) std::atomic<bool> open_{true};
  std::unique_ptr<Hand<Element>[]> hands_;  // A lane each; made before lanes_ is set, and never changed.
  std::atomic<int64_t> lanes_{0};           // 0 until a program takes.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_INFEED_H_
