// The queue between one pass over a dataset and the programs that it feeds: bounded, closable, in the dataset's order.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_INFEED_H_
#define TENSORFLOW_IPU_KERNELS_CORE_INFEED_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow_ipu/kernels/core/capacity.h"
#include "tensorflow_ipu/kernels/core/groups.h"
#include "tensorflow_ipu/kernels/core/lane_cache.h"
#include "tensorflow_ipu/kernels/core/lane_rows.h"
#include "tensorflow_ipu/kernels/core/metrics.h"
#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/outcome.h"
#include "tensorflow_ipu/kernels/core/pump_sleep.h"
#include "tensorflow_ipu/kernels/core/tuning.h"
#include "tensorflow_ipu/kernels/core/waiters.h"
#include "tensorflow_ipu/kernels/core/waiting.h"

namespace tensorflow_ipu::core {

//   pump --Push--> [ t+2 | t+1 | t ] --Take / TakeLater--> lane (t % lanes)
//
// A lane is a replica of the program, and how many there are is known only when a program takes for the first time.
// lane_rows.h says which element goes to which lane.
//
// Only the pump blocks (in Push and AwaitUse, until there is room or use, or the queue is closed). A program never
// does: it takes what is ready, or leaves word where to deliver (TakeLater), which happens on a thread of the executor.
//
// Thread-safe, but for Push, AwaitUse and End, which are one thread's; lives in a shared_ptr.
template <typename Element>
class Infeed : public std::enable_shared_from_this<Infeed<Element>> {
 public:
  using Deliver = typename Waiters<Element>::Deliver;
  enum class Took { kElement, kNothing, kFailed };

  Infeed(std::string name, int64_t depth, Grouping sharing = {1, false})
      : name_(std::move(name)), capacity_(depth), rows_(sharing) {}

  Infeed(const Infeed&) = delete;
  Infeed& operator=(const Infeed&) = delete;

  // Nobody is left without an answer.
  ~Infeed() { Close(); }

  const std::string& name() const { return name_; }

  // The pump's call: appends an element of so many bytes, after a wait for room. Cancelled once the queue is closed. In
  // exchange `element` becomes what a Take has left in its place, so that memory goes to and fro, and is not freed on
  // another thread than it came from.
  Outcome Push(Element&& element, std::size_t bytes) IPU_EXCLUDES(mutex_) {
    Lock lock(mutex_);
    if (!HasRoom()) capacity_.RanFull();
    capacity_.SetBytes(bytes);
    bytes_ = bytes;
    if (!HasRoom()) {
      pump_.AwaitRoom(lock, capacity_.elements(), [this]() IPU_REQUIRES(mutex_) { return HasRoom(); });
    }
    if (!open_) return Closed();
    rows_.Push(&element);
    pushed_.store(rows_.pushed(), std::memory_order_release);
    if (!rows_.EndsRow()) return Outcome::Ok();
    for (int64_t lane = 0; lane < lanes_; ++lane) {
      if (waiters_.Any(lane)) Serve(lane);
    }
    return Outcome::Ok();
  }

  // The pump's last call: no element follows, for this reason (the dataset's end is OutOfRange).
  void End(Outcome why) IPU_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    if (!open_) return;
    end_ = std::move(why);
    waiters_.FailAll(*end_);  // They wait for a row that is not whole, and now never will be.
  }

  // The pump's call: waits until a program has asked for an element. Returns false where the queue is closed instead.
  bool AwaitUse() IPU_EXCLUDES(mutex_) {
    Lock lock(mutex_);
    pump_.Await(lock, [this] { return lanes_ != 0 || !open_; });
    return open_;
  }

  // Takes this lane's next element if it is ready; kNothing while it still may come. On kFailed `*why` says why. What
  // `*element` was stays in the queue for the pump (see Push), and should hold no more than memory.
  Took Take(int64_t lane, int64_t lanes, Element* element, Outcome* why) IPU_EXCLUDES(mutex_) {
    LaneCache<Element>* const cache = CacheOf(lane, lanes, why);
    if (cache == nullptr) return Took::kFailed;
    const Lock cache_lock(cache->mutex);
    if (Stopped()) {
      *why = WhyStopped();
      return Took::kFailed;
    }
    if (cache->count() == 0) {
      const Lock lock(mutex_);
      *why = Refusal(lane, lanes);
      if (!why->ok()) return Took::kFailed;
      if (!waiters_.Any(lane)) {
        cache->Refill(capacity_.batch(), [&](Element* place) {
          mutex_.AssertHeld();
          return Pop(lane, place);
        });
        rows_.Prefetch(lane, capacity_.batch());
      }
      if (cache->count() == 0) {
        capacity_.RanEmpty();
        return Took::kNothing;
      }
    }
    cache->Take(element);
    return Took::kElement;
  }

  // Takes this lane's next element where that is at hand without the lock of the queue: has `use(Element&)` use it
  // where it lies, under a lock that is for moments. Returns false, and uses nothing, in all other cases, which are for
  // Take.
  template <typename Use>
  bool TakeAtHand(int64_t lane, int64_t lanes, Use use) {
    if (lanes_.load(std::memory_order_acquire) != lanes) return false;
    LaneCache<Element>& cache = caches_[lane];
    const Lock cache_lock(cache.mutex);
    if (cache.count() == 0 || Stopped()) return false;
    cache.TakeInPlace(use);
    return true;
  }

  // Spins for a moment for this lane's next element. Returns whether a Take is worth another try. How long a moment is
  // follows from how long elements were waited for lately: a slow dataset should not cost a core.
  bool SpinForNext(int64_t lane) IPU_EXCLUDES(mutex_) {
    int64_t wanted;
    {
      const Lock lock(mutex_);
      if (lanes_ != 1) return false;  // Replicas together would hold up the very cores that they wait for.
      wanted = rows_.NextOf(lane);
    }
    const auto begin = std::chrono::steady_clock::now();
    const bool came = SpinUntil(std::chrono::nanoseconds(spin_limit_ns_), [&] { return pushed_ > wanted || !open_; });
    const auto end = std::chrono::steady_clock::now();
    if (came) {
      // Not under mutex_, which the pump wants too.
      spins_.fetch_add(1, std::memory_order_relaxed);
      spins_ns_.fetch_add((end - begin).count(), std::memory_order_relaxed);
      Metrics::Global().infeed_waits.Add(end, end - begin);
    } else {
      vain_spin_ns_.store((end - begin).count(), std::memory_order_relaxed);  // The wait goes on in TakeLater.
    }
    return came;
  }

  // Delivers this lane's next element: at once and on this thread if it is ready, else on a thread of the executor when
  // it comes, when the queue ends or is closed, or when the limit for waits is over.
  void TakeLater(int64_t lane, int64_t lanes, Deliver deliver) IPU_EXCLUDES(mutex_) {
    Element element;
    Outcome why;
    if (LaneCache<Element>* const cache = CacheOf(lane, lanes, &why)) {
      const Lock cache_lock(cache->mutex);
      if (Stopped()) {
        why = WhyStopped();
      } else if (cache->count() > 0) {
        cache->Take(&element);
      } else {
        const Lock lock(mutex_);
        why = Refusal(lane, lanes);
        if (why.ok() && (waiters_.Any(lane) || !Pop(lane, &element))) {
          Wait(lane, std::move(deliver));
          return;
        }
      }
    }
    deliver(std::move(why), std::move(element));
  }

  // Drops what is ready, ends the pump's Push, and fails those who wait or come later. Final.
  void Close() IPU_EXCLUDES(mutex_) {
    const int64_t unused = ready();
    decltype(rows_.Clear()) dropped;  // Goes after the lock: elements may be large, or not ours alone.
    {
      const Lock lock(mutex_);
      if (open_) dropped_ = unused;
      open_ = false;
      dropped = rows_.Clear();
      waiters_.FailAll(Closed());
      pump_.Wake();
    }
    std::vector<std::vector<Element>> cached;
    ForEachCache([&](int64_t, LaneCache<Element>* cache)
                     IPU_REQUIRES(cache->mutex) { cached.push_back(cache->Clear()); });
  }

  // Fails those who wait (see `interrupted`); the queue and its elements stay.
  void Interrupt() IPU_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    waiters_.FailAll(Interrupted());
  }

  // Brings all lanes to the row of the one that is furthest: after a run whose replicas ended at different places, the
  // next starts with a whole row. No program may use the queue meanwhile.
  void Align() IPU_EXCLUDES(mutex_) {
    int64_t furthest = 0;
    ForEachCache([&](int64_t lane, LaneCache<Element>* cache) IPU_REQUIRES(cache->mutex) {
      const Lock lock(mutex_);
      furthest = std::max(furthest, rows_.RowOf(lane) - cache->count());
    });
    ForEachCache([&](int64_t lane, LaneCache<Element>* cache) IPU_REQUIRES(cache->mutex) {
      const Lock lock(mutex_);
      if (!open_) return;
      for (int64_t behind = furthest - rows_.RowOf(lane) + cache->count(); behind > 0; --behind) {
        Element dropped;
        if (cache->count() > 0) {
          cache->Take(&dropped);
        } else if (!Pop(lane, &dropped)) {
          return;
        }
      }
    });
  }

  // Elements that were pushed and not yet taken, where lanes share them by all.
  int64_t ready() const IPU_EXCLUDES(mutex_) {
    std::vector<int64_t> cached;  // By lane.
    ForEachCache([&](int64_t, const LaneCache<Element>* cache)
                     IPU_REQUIRES(cache->mutex) { cached.push_back(cache->count()); });
    const Lock lock(mutex_);
    return !open_ || cached.empty() ? rows_.held() : rows_.Unused(cached);
  }

  // What programs took so far, and how long they waited for it. Two threads that close the queue and take from it may
  // make an element count or not.
  Passed passed() const IPU_EXCLUDES(mutex_) {
    const int64_t unused = ready();
    const Lock lock(mutex_);
    const int64_t taken = rows_.pushed() - (open_ ? unused : dropped_);
    return {taken, taken * static_cast<int64_t>(bytes_), waiters_.waits() + spins_,
            waiters_.waited().count() + spins_ns_};
  }

  // Elements that it keeps ready at the most.
  int64_t depth() const IPU_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    return capacity_.elements();
  }

  // Programs that wait for an element.
  int64_t waiting() const IPU_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    return waiters_.count();
  }

 private:
  // The lane's cache, or null and why the queue refuses the program.
  LaneCache<Element>* CacheOf(int64_t lane, int64_t lanes, Outcome* why) IPU_EXCLUDES(mutex_) {
    if (lanes_.load(std::memory_order_acquire) != lanes) {
      const Lock lock(mutex_);
      *why = Refusal(lane, lanes);
      if (!why->ok()) return nullptr;
    }
    return &caches_[lane];
  }

  // Calls `visit(lane, cache)` for each, with its mutex held.
  template <typename Visit>
  void ForEachCache(Visit visit) const {
    const int64_t lanes = lanes_.load(std::memory_order_acquire);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      LaneCache<Element>* const cache = &caches_[lane];
      const Lock lock(cache->mutex);
      visit(lane, cache);
    }
  }

  bool HasRoom() const IPU_REQUIRES(mutex_) { return rows_.held() < capacity_.elements() || !open_; }

  bool Stopped() const { return !open_ || interrupted.load(std::memory_order_relaxed); }

  Outcome WhyStopped() const { return open_ ? Interrupted() : Closed(); }

  Outcome Closed() const {
    return Outcome::Cancelled("The infeed queue `" + name_ + "` was deleted or restarted while a program used it.");
  }

  Outcome Interrupted() const {
    return Outcome::Cancelled("The run was interrupted while it used the infeed queue `" + name_ + "`.");
  }

  // Why a program of so many replicas gets no element on this lane, or Ok. The first one to ask decides on the lanes.
  Outcome Refusal(int64_t lane, int64_t lanes) IPU_REQUIRES(mutex_) {
    if (Stopped()) return WhyStopped();
    if (lanes_ == 0) {
      if (!rows_.sharing().Divides(lanes)) {
        return Outcome::InvalidArgument("The infeed queue `" + name_ + "` shares its elements in groups of " +
                                        std::to_string(rows_.sharing().size) + " replicas, and the program has " +
                                        std::to_string(lanes) + ". Make the group size a divisor of that.");
      }
      rows_.SetLanes(lanes);
      waiters_.SetLanes(lanes);
      caches_ = std::make_unique<LaneCache<Element>[]>(lanes);
      lanes_.store(lanes, std::memory_order_release);
      capacity_.SetWidth(rows_.width());
      pump_.Wake();
    }
    if (lanes_ != lanes) {
      return Outcome::FailedPrecondition("The infeed queue `" + name_ + "` already feeds a program of " +
                                         std::to_string(lanes_) + " replicas; a program of " + std::to_string(lanes) +
                                         " cannot share it. Make a queue for each.");
    }
    return end_.has_value() && !rows_.IsReady(lane) ? *end_ : Outcome::Ok();
  }

  bool Pop(int64_t lane, Element* element) IPU_REQUIRES(mutex_) {
    if (!rows_.Pop(lane, element)) return false;
    const int64_t left = rows_.held();
    pump_.Left(left, left < rows_.width());  // From a row that is not whole nobody takes.
    return true;
  }

  void Wait(int64_t lane, Deliver deliver) IPU_REQUIRES(mutex_) {
    const std::chrono::nanoseconds limit(wait_limit_ns);
    const std::chrono::nanoseconds spun(vain_spin_ns_.exchange(0, std::memory_order_relaxed));
    waiters_.Add(lane, std::move(deliver), spun, limit, [weak = this->weak_from_this(), lane, limit](int64_t number) {
      if (const auto self = weak.lock()) self->GiveUp(lane, number, limit);
    });
  }

  void GiveUp(int64_t lane, int64_t number, std::chrono::nanoseconds limit) IPU_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    waiters_.GiveUp(lane, number,
                    Outcome::DeadlineExceeded("The program waited " + std::to_string(limit.count() / 1000000) +
                                              " ms for an element of the infeed queue `" + name_ +
                                              "`, the limit for waits. Speed the dataset up, or raise the limit with "
                                              "`feeds.set_wait_limit`."));
  }

  // Gives the first who waits in this lane its element.
  void Serve(int64_t lane) IPU_REQUIRES(mutex_) {
    Element element;
    Pop(lane, &element);
    const bool worth_a_spin = waiters_.Serve(lane, std::move(element)) < kLongestSpin;
    spin_limit_ns_ = worth_a_spin ? kLongestSpin.count() : std::max(kShortestSpin.count(), spin_limit_ns_ / 2);
  }

  const std::string name_;

  // Whoever holds the mutex of a lane's cache too has locked that first.
  mutable Mutex mutex_;
  PumpSleep pump_ IPU_GUARDED_BY(mutex_);
  Capacity capacity_ IPU_GUARDED_BY(mutex_);
  LaneRows<Element> rows_ IPU_GUARDED_BY(mutex_);
  std::size_t bytes_ IPU_GUARDED_BY(mutex_) = 0;  // Of an element.
  int64_t dropped_ IPU_GUARDED_BY(mutex_) = 0;    // Elements that nobody had taken when it was closed.
  std::optional<Outcome> end_ IPU_GUARDED_BY(mutex_);
  Waiters<Element> waiters_ IPU_GUARDED_BY(mutex_);

  // Written under mutex_; read without it by those who spin.
  std::atomic<int64_t> pushed_{0};
  std::atomic<int64_t> spin_limit_ns_{kLongestSpin.count()};
  std::atomic<int64_t> spins_{0};  // Waits that were over while the program spun, and their time.
  std::atomic<int64_t> spins_ns_{0};
  std::atomic<int64_t> vain_spin_ns_{0};  // For how long the program has spun for the element that it waits for now.

  // Read with each Take: on a cache line that hardly changes. The caches are made before lanes_ is set, and never
  // changed.
  alignas(64) std::atomic<bool> open_{true};
  std::unique_ptr<LaneCache<Element>[]> caches_;
  std::atomic<int64_t> lanes_{0};  // 0 until a program takes.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_INFEED_H_
