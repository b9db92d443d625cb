// The bounded queue between one pass over a dataset and the programs that it feeds.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/queues/infeed_rows.h"
#include "tensorflow_ipu/kernels/support/groups.h"
#include "tensorflow_ipu/kernels/support/metrics.h"
#include "tensorflow_ipu/kernels/support/threads.h"
#include "tensorflow_ipu/kernels/support/tuning.h"
#include "tensorflow_ipu/kernels/support/turns.h"
#include "tensorflow_ipu/kernels/support/waiting.h"

namespace tensorflow_ipu::core {

// The programs that wait for an element, in one line per replica. They get it on a thread of the executor, since a
// callback may run the rest of a program. Not thread-safe.
template <typename Element>
class Waiters {
 public:
  // On an error the element is empty.
  using Callback = std::function<void(absl::Status, Element)>;

  void SetReplicas(int64_t replicas) { lines_.resize(replicas); }

  bool Any(int64_t replica) const { return !lines_[replica].empty(); }

  // Returns the number of programs that wait, on all replicas.
  int64_t count() const {
    int64_t count = 0;
    for (const auto& line : lines_) count += static_cast<int64_t>(line.size());
    return count;
  }

  // The number and the total time of finished waits.
  int64_t waits() const { return waits_; }
  std::chrono::nanoseconds waited() const { return waited_; }

  // Appends a program that has already waited for `already`. If `limit` is above 0, `late(number)` is called when the
  // program has waited that long.
  template <typename Late>
  void Add(int64_t replica, Callback callback, std::chrono::nanoseconds already, std::chrono::nanoseconds limit,
           Late late) {
    Waiter waiter{next_number_++, std::move(callback), Deadlines::Clock::now() - already, std::nullopt};
    if (limit.count() > 0) {
      waiter.deadline = Deadlines::Global().Add(waiter.since + limit,
                                                [late = std::move(late), number = waiter.number] { late(number); });
    }
    lines_[replica].push_back(std::move(waiter));
  }

  // Passes the element to the first program. Returns how long it has waited.
  std::chrono::nanoseconds Serve(int64_t replica, Element element) {
    Waiter waiter = std::move(lines_[replica].front());
    lines_[replica].pop_front();
    return Finish(std::move(waiter), absl::OkStatus(), std::move(element));
  }

  void Fail(int64_t replica, const absl::Status& why) {
    for (Waiter& waiter : lines_[replica]) Finish(std::move(waiter), why, Element());
    lines_[replica].clear();
  }

  void FailAll(const absl::Status& why) {
    for (std::size_t replica = 0; replica < lines_.size(); ++replica) Fail(static_cast<int64_t>(replica), why);
  }

  void GiveUp(int64_t replica, int64_t number, const absl::Status& why) {
    if (replica >= static_cast<int64_t>(lines_.size())) return;
    auto& line = lines_[replica];
    for (auto waiter = line.begin(); waiter != line.end(); ++waiter) {
      if (waiter->number != number) continue;
      waiter->deadline.reset();
      Finish(std::move(*waiter), why, Element());
      line.erase(waiter);
      return;
    }
  }

 private:
  struct Waiter {
    int64_t number;
    Callback callback;
    Deadlines::Clock::time_point since;
    std::optional<Deadlines::Ticket> deadline;
  };

  std::chrono::nanoseconds Finish(Waiter waiter, absl::Status why, Element element) {
    const auto now = Deadlines::Clock::now();
    const std::chrono::nanoseconds waited = now - waiter.since;
    ++waits_;
    waited_ += waited;
    Metrics::Global().infeed_waits.Add(now, waited);
    if (waiter.deadline.has_value()) Deadlines::Global().Remove(*waiter.deadline);
    Executor::Global().Run([callback = std::move(waiter.callback), why = std::move(why),
                            element = std::move(element)](const absl::Status& started) mutable {
      callback(started.ok() ? std::move(why) : started, std::move(element));
    });
    return waited;
  }

  std::vector<std::deque<Waiter>> lines_;  // By replica.
  int64_t next_number_ = 0;
  int64_t waits_ = 0;
  std::chrono::nanoseconds waited_{0};
};

// An infeed queue. Only the pump blocks, in Push and AwaitUse. A program takes an element that is ready, or leaves a
// callback (TakeLater), which runs on a thread of the executor. The number of replicas is known once a program takes
// the first element.
//
// Thread-safe, except for Push, AwaitUse and End, which one thread must call; must be owned by a shared_ptr.
template <typename Element>
class Infeed : public std::enable_shared_from_this<Infeed<Element>> {
 public:
  using Callback = typename Waiters<Element>::Callback;
  enum class Took { kElement, kNothing, kFailed };

  // `turns` orders the runs of the device whose programs use the infeed.
  Infeed(std::string name, int64_t depth, Grouping sharing = {1, false}, const Turns* turns = nullptr)
      : name_(std::move(name)), capacity_(depth), rows_(sharing), turns_(turns) {}

  ~Infeed() { Close(); }

  const std::string& name() const { return name_; }

  // Returns true if the program of this turn on the device has used the queue.
  bool UsedIn(int64_t turn) const {
    bool used = false;
    ForEachCache([&](int64_t, const ReplicaCache<Element>* cache)
                     ABSL_EXCLUSIVE_LOCKS_REQUIRED(cache->mutex) { used = used || cache->turn == turn; });
    return used;
  }

  // Rejects the program of this turn, because it used the preceding pass: some replicas could get rows of that pass,
  // and others rows of this pass. Must be called before programs can find the queue.
  void Refuse(int64_t turn) { refused_turn_ = turn; }

  // Waits for room and appends an element. Returns Cancelled once the queue is closed. `element` receives memory that
  // an earlier Take returned, so that each thread frees its own memory.
  absl::Status Push(Element&& element, std::size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    if (!HasRoom()) capacity_.RanFull();
    capacity_.SetBytes(bytes);
    bytes_ = bytes;
    if (!HasRoom()) mutex_.Await(absl::Condition(this, &Infeed::HasMuchRoom));
    if (!open_) return Closed();
    rows_.Push(&element);
    pushed_.store(rows_.pushed(), std::memory_order_release);
    if (!rows_.EndsRow()) return absl::OkStatus();
    for (int64_t replica = 0; replica < replicas_; ++replica) {
      if (waiters_.Any(replica)) Serve(replica);
    }
    return absl::OkStatus();
  }

  // Ends the queue; the last call of the pump. At the end of the dataset, `why` is OutOfRange.
  void End(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    if (!open_) return;
    end_ = std::move(why);
    waiters_.FailAll(*end_);  // They wait for an incomplete row.
  }

  // Waits until a program has used the queue. Returns false if the queue is closed.
  bool AwaitUse() ABSL_LOCKS_EXCLUDED(mutex_) {
    const auto used = [this] { return replicas_ != 0 || !open_; };
    const absl::MutexLock lock(&mutex_, absl::Condition(&used));
    return open_;
  }

  // Takes the replica's next element if it is ready. The previous content of `*element` is returned to the pump (see
  // Push).
  Took Take(int64_t replica, int64_t replicas, Element* element, absl::Status* why) ABSL_LOCKS_EXCLUDED(mutex_) {
    ReplicaCache<Element>* const cache = CacheOf(replica, replicas, why);
    if (cache == nullptr) return Took::kFailed;
    const absl::MutexLock cache_lock(&cache->mutex);
    cache->turn = Turn();
    if (Stopped()) {
      *why = WhyStopped();
      return Took::kFailed;
    }
    if (cache->count() == 0) {
      const absl::MutexLock lock(&mutex_);
      *why = Refusal(replica, replicas);
      if (!why->ok()) return Took::kFailed;
      if (!waiters_.Any(replica)) {
        cache->Refill(capacity_.batch(), [&](Element* place) {
          mutex_.AssertHeld();
          return Pop(replica, place);
        });
        rows_.Prefetch(replica, capacity_.batch());
      }
      if (cache->count() == 0) {
        capacity_.RanEmpty();
        return Took::kNothing;
      }
    }
    cache->Take(element);
    return Took::kElement;
  }

  // Takes the next element if it is in the replica's cache, without the lock of the queue, by calling `use(Element&)`.
  // Otherwise it returns false, and Take must be called.
  template <typename Use>
  bool TakeAtHand(int64_t replica, int64_t replicas, Use use) {
    if (replicas_.load(std::memory_order_acquire) != replicas) return false;
    ReplicaCache<Element>& cache = caches_[replica];
    const absl::MutexLock cache_lock(&cache.mutex);
    if (cache.count() == 0 || Stopped()) return false;
    cache.turn = Turn();
    cache.TakeInPlace(use);
    return true;
  }

  // Spins for the next element. Returns true if Take should be called again. The limit depends on recent waits, so that
  // a slow dataset does not occupy a core.
  bool SpinForNext(int64_t replica) ABSL_LOCKS_EXCLUDED(mutex_) {
    int64_t next;
    {
      const absl::MutexLock lock(&mutex_);
      if (replicas_ != 1) return false;  // Spinning replicas would occupy the cores that they wait for.
      next = rows_.NextOf(replica);
    }
    const auto begin = std::chrono::steady_clock::now();
    const bool arrived = SpinUntil(std::chrono::nanoseconds(spin_limit_ns_), [&] { return pushed_ > next || !open_; });
    const auto end = std::chrono::steady_clock::now();
    if (arrived) {
      spins_.fetch_add(1, std::memory_order_relaxed);
      spins_ns_.fetch_add((end - begin).count(), std::memory_order_relaxed);
      Metrics::Global().infeed_waits.Add(end, end - begin);
    } else {
      // The wait continues in TakeLater.
      unsuccessful_spin_ns_.store((end - begin).count(), std::memory_order_relaxed);
    }
    return arrived;
  }

  // Calls Take, and calls it again if an element arrives within a short time.
  Took TakeOrSpin(int64_t replica, int64_t replicas, Element* element, absl::Status* why) ABSL_LOCKS_EXCLUDED(mutex_) {
    const Took took = Take(replica, replicas, element, why);
    if (took != Took::kNothing || !SpinForNext(replica)) return took;
    return Take(replica, replicas, element, why);
  }

  // Calls `callback` with the next element: at once if it is ready, else on a thread of the executor. Calls it with an
  // error when the queue ends or is closed, or after the limit for waits.
  void TakeLater(int64_t replica, int64_t replicas, Callback callback) ABSL_LOCKS_EXCLUDED(mutex_) {
    Element element;
    absl::Status why;
    if (ReplicaCache<Element>* const cache = CacheOf(replica, replicas, &why)) {
      const absl::MutexLock cache_lock(&cache->mutex);
      cache->turn = Turn();
      if (Stopped()) {
        why = WhyStopped();
      } else if (cache->count() > 0) {
        cache->Take(&element);
      } else {
        const absl::MutexLock lock(&mutex_);
        why = Refusal(replica, replicas);
        if (why.ok() && (waiters_.Any(replica) || !Pop(replica, &element))) {
          Wait(replica, std::move(callback));
          return;
        }
      }
    }
    callback(std::move(why), std::move(element));
  }

  // Drops the elements, ends the pump's Push, and fails waiting and later calls.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_) {
    const int64_t unused = ready();
    decltype(rows_.Clear()) dropped;  // Destroyed after the lock is released: elements may be large or shared.
    {
      const absl::MutexLock lock(&mutex_);
      if (open_) dropped_ = unused;
      open_ = false;
      dropped = rows_.Clear();
      waiters_.FailAll(Closed());
    }
    std::vector<std::vector<Element>> cached;
    ForEachCache([&](int64_t, ReplicaCache<Element>* cache)
                     ABSL_EXCLUSIVE_LOCKS_REQUIRED(cache->mutex) { cached.push_back(cache->Clear()); });
  }

  // Fails the programs that wait; the queue and its elements stay.
  void Interrupt() ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    waiters_.FailAll(Interrupted());
  }

  // Advances all replicas to the row of the furthest one, so that the next run starts with a whole row. No program may
  // use the queue at the same time.
  void Align() ABSL_LOCKS_EXCLUDED(mutex_) {
    int64_t furthest = 0;
    ForEachCache([&](int64_t replica, ReplicaCache<Element>* cache) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cache->mutex) {
      const absl::MutexLock lock(&mutex_);
      furthest = std::max(furthest, rows_.RowOf(replica) - cache->count());
    });
    ForEachCache([&](int64_t replica, ReplicaCache<Element>* cache) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cache->mutex) {
      const absl::MutexLock lock(&mutex_);
      if (!open_) return;
      for (int64_t missing = furthest - rows_.RowOf(replica) + cache->count(); missing > 0; --missing) {
        Element dropped;
        if (cache->count() > 0) {
          cache->Take(&dropped);
        } else if (!Pop(replica, &dropped)) {
          return;
        }
      }
    });
  }

  int64_t ready() const ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<int64_t> cached;
    ForEachCache([&](int64_t, const ReplicaCache<Element>* cache)
                     ABSL_EXCLUSIVE_LOCKS_REQUIRED(cache->mutex) { cached.push_back(cache->count()); });
    const absl::MutexLock lock(&mutex_);
    return !open_ || cached.empty() ? rows_.held() : rows_.Unused(cached);
  }

  // Returns the totals of elements that programs took and of their waits. A concurrent Close may miscount one element.
  Passed passed() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const int64_t unused = ready();
    const absl::MutexLock lock(&mutex_);
    const int64_t taken = rows_.pushed() - (open_ ? unused : dropped_);
    return {taken, taken * static_cast<int64_t>(bytes_), waiters_.waits() + spins_,
            waiters_.waited().count() + spins_ns_};
  }

  // Returns the maximum number of elements that are kept ready.
  int64_t depth() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return capacity_.elements();
  }

  // Returns the number of programs that wait for an element.
  int64_t waiting() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return waiters_.count();
  }

 private:
  ReplicaCache<Element>* CacheOf(int64_t replica, int64_t replicas, absl::Status* why) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (replicas_.load(std::memory_order_acquire) != replicas) {
      const absl::MutexLock lock(&mutex_);
      *why = Refusal(replica, replicas);
      if (!why->ok()) return nullptr;
    }
    return &caches_[replica];
  }

  // Calls `visit(replica, cache)` with the cache's mutex held.
  template <typename Visit>
  void ForEachCache(Visit visit) const {
    const int64_t replicas = replicas_.load(std::memory_order_acquire);
    for (int64_t replica = 0; replica < replicas; ++replica) {
      ReplicaCache<Element>* const cache = &caches_[replica];
      const absl::MutexLock lock(&cache->mutex);
      visit(replica, cache);
    }
  }

  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return rows_.held() < capacity_.elements() || !open_; }

  // The pump sleeps until programs have taken half of the elements, since waking it takes longer than ten small
  // elements. It also wakes if no complete row is left, because programs take no elements of an incomplete row.
  bool HasMuchRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t remaining = rows_.held();
    return remaining <= capacity_.elements() / 2 || remaining < rows_.width() || !open_;
  }

  int64_t Turn() const { return turns_ == nullptr ? 0 : turns_->current(); }

  bool Stopped() const { return !open_ || interrupted.load(std::memory_order_relaxed); }

  absl::Status WhyStopped() const { return open_ ? Interrupted() : Closed(); }

  absl::Status Closed() const {
    return absl::CancelledError("The infeed queue `" + name_ + "` was deleted or restarted while a program used it.");
  }

  absl::Status Interrupted() const {
    return absl::CancelledError("The run was interrupted while it used the infeed queue `" + name_ + "`.");
  }

  // Returns an error if a replica may not use the queue. The first program that uses the queue sets the number of
  // replicas.
  absl::Status Refusal(int64_t replica, int64_t replicas) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (Stopped()) return WhyStopped();
    if (replicas_ == 0) {
      if (refused_turn_ != 0 && Turn() == refused_turn_) return Closed();
      if (!rows_.sharing().Divides(replicas)) {
        return absl::InvalidArgumentError("The infeed queue `" + name_ + "` shares its elements in groups of " +
                                          std::to_string(rows_.sharing().size) + " replicas, but the program has " +
                                          std::to_string(replicas) + ". The group size must divide that number.");
      }
      rows_.SetReplicas(replicas);
      waiters_.SetReplicas(replicas);
      caches_ = std::make_unique<ReplicaCache<Element>[]>(replicas);
      replicas_.store(replicas, std::memory_order_release);
      capacity_.SetWidth(rows_.width());
    }
    if (replicas_ != replicas) {
      return absl::FailedPreconditionError("The infeed queue `" + name_ + "` already feeds a program of " +
                                           std::to_string(replicas_) + " replicas; a program of " +
                                           std::to_string(replicas) + " cannot share it. Create a queue for each.");
    }
    return end_.has_value() && !rows_.IsReady(replica) ? *end_ : absl::OkStatus();
  }

  bool Pop(int64_t replica, Element* element) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return rows_.Pop(replica, element);
  }

  void Wait(int64_t replica, Callback callback) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::chrono::nanoseconds limit(wait_limit_ns);
    const std::chrono::nanoseconds spun(unsuccessful_spin_ns_.exchange(0, std::memory_order_relaxed));
    waiters_.Add(replica, std::move(callback), spun, limit,
                 [weak = this->weak_from_this(), replica, limit](int64_t number) {
                   if (const auto self = weak.lock()) self->GiveUp(replica, number, limit);
                 });
  }

  void GiveUp(int64_t replica, int64_t number, std::chrono::nanoseconds limit) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    waiters_.GiveUp(replica, number,
                    absl::DeadlineExceededError("The program waited " + std::to_string(limit.count() / 1000000) +
                                                " ms for an element of the infeed queue `" + name_ +
                                                "`, the limit for waits. Speed up the dataset, or raise the limit with "
                                                "`feeds.set_wait_limit`."));
  }

  void Serve(int64_t replica) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Element element;
    Pop(replica, &element);
    const bool worth_a_spin = waiters_.Serve(replica, std::move(element)) < kLongestSpin;
    spin_limit_ns_ = worth_a_spin ? kLongestSpin.count() : std::max(kShortestSpin.count(), spin_limit_ns_ / 2);
  }

  const std::string name_;
  int64_t refused_turn_ = 0;

  // The mutex of a cache is locked before this one.
  mutable absl::Mutex mutex_;
  Capacity capacity_ ABSL_GUARDED_BY(mutex_);
  ReplicaRows<Element> rows_ ABSL_GUARDED_BY(mutex_);
  std::size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // The size of an element.
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;    // The number of elements left when it was closed.
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  Waiters<Element> waiters_ ABSL_GUARDED_BY(mutex_);

  // Written under mutex_; read without it while a program spins.
  std::atomic<int64_t> pushed_{0};
  std::atomic<int64_t> spin_limit_ns_{kLongestSpin.count()};
  std::atomic<int64_t> spins_{0};  // Waits that ended while the program spun.
  std::atomic<int64_t> spins_ns_{0};
  // How long the program has spun for the element that it waits for.
  std::atomic<int64_t> unsuccessful_spin_ns_{0};

  // Each Take reads these members, so they are on a cache line that rarely changes. The caches are created before the
  // number of replicas is set, and never replaced.
  alignas(64) std::atomic<bool> open_{true};
  const Turns* const turns_;
  std::unique_ptr<ReplicaCache<Element>[]> caches_;
  std::atomic<int64_t> replicas_{0};  // 0 until a program takes an element.
};

}  // namespace tensorflow_ipu::core
