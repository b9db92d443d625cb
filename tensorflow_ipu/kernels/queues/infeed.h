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

// Programs that wait for an element, in a line for each replica. They get it on a thread of the executor, since a
// callback may run the rest of a program. Not thread-safe.
template <typename Element>
class Waiters {
 public:
  // On an error the element is empty.
  using Callback = std::function<void(absl::Status, Element)>;

  void SetReplicas(int64_t replicas) { lines_.resize(replicas); }

  bool Any(int64_t replica) const { return !lines_[replica].empty(); }

  // Of all replicas.
  int64_t count() const {
    int64_t count = 0;
    for (const auto& line : lines_) count += static_cast<int64_t>(line.size());
    return count;
  }

  // Of finished waits.
  int64_t waits() const { return waits_; }
  std::chrono::nanoseconds waited() const { return waited_; }

  // Appends a program that has waited for `already`. `late(number)` is called after a limit above 0.
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

  // Returns how long it has waited.
  std::chrono::nanoseconds Serve(int64_t replica, Element element) {
    Waiter waiter = std::move(lines_[replica].front());
    lines_[replica].pop_front();
    return HandOver(std::move(waiter), absl::OkStatus(), std::move(element));
  }

  void Fail(int64_t replica, const absl::Status& why) {
    for (Waiter& waiter : lines_[replica]) HandOver(std::move(waiter), why, Element());
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
      HandOver(std::move(*waiter), why, Element());
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

  std::chrono::nanoseconds HandOver(Waiter waiter, absl::Status why, Element element) {
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

// Only the pump blocks (in Push and AwaitUse). A program takes what is ready, or leaves a callback (TakeLater), which
// runs on a thread of the executor. The number of replicas is known once a program takes the first element.
//
// Thread-safe, but for Push, AwaitUse and End, which belong to one thread; lives in a shared_ptr.
template <typename Element>
class Infeed : public std::enable_shared_from_this<Infeed<Element>> {
 public:
  using Callback = typename Waiters<Element>::Callback;
  enum class Took { kElement, kNothing, kFailed };

  // `turns` are those of the device whose programs it feeds.
  Infeed(std::string name, int64_t depth, Grouping sharing = {1, false}, const Turns* turns = nullptr)
      : name_(std::move(name)), capacity_(depth), rows_(sharing), turns_(turns) {}

  ~Infeed() { Close(); }

  const std::string& name() const { return name_; }

  // Whether the program that has this turn on the device has asked for an element.
  bool UsedIn(int64_t turn) const {
    bool used = false;
    ForEachCache([&](int64_t, const ReplicaCache<Element>* cache)
                     ABSL_EXCLUSIVE_LOCKS_REQUIRED(cache->mutex) { used = used || cache->turn == turn; });
    return used;
  }

  // Refuses the program of a turn that used the pass before this one: its replicas would go on with rows of either.
  // Called before programs find the queue.
  void Refuse(int64_t turn) { refused_turn_ = turn; }

  // Appends an element after a wait for room. Cancelled once the queue is closed. `element` gets back the memory that a
  // Take left, so that each thread frees its own memory.
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

  // Called last by the pump: no element follows. The end of the dataset is OutOfRange.
  void End(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    if (!open_) return;
    end_ = std::move(why);
    waiters_.FailAll(*end_);  // They wait for an incomplete row.
  }

  // Waits until a program has asked for an element. Returns false if the queue is closed.
  bool AwaitUse() ABSL_LOCKS_EXCLUDED(mutex_) {
    const auto used = [this] { return replicas_ != 0 || !open_; };
    const absl::MutexLock lock(&mutex_, absl::Condition(&used));
    return open_;
  }

  // Takes the replica's next element if it is ready. The previous content of `*element` goes back to the pump (see
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

  // Takes the next element if the replica's cache has it, without the lock of the queue: calls `use(Element&)`. In all
  // other cases it returns false; then call Take.
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

  // Spins for the next element. Returns whether a Take is worth another try. The limit follows from recent waits, so
  // that a slow dataset costs no core.
  bool SpinForNext(int64_t replica) ABSL_LOCKS_EXCLUDED(mutex_) {
    int64_t wanted;
    {
      const absl::MutexLock lock(&mutex_);
      if (replicas_ != 1) return false;  // Spinning replicas would occupy the cores that they wait for.
      wanted = rows_.NextOf(replica);
    }
    const auto begin = std::chrono::steady_clock::now();
    const bool came = SpinUntil(std::chrono::nanoseconds(spin_limit_ns_), [&] { return pushed_ > wanted || !open_; });
    const auto end = std::chrono::steady_clock::now();
    if (came) {
      spins_.fetch_add(1, std::memory_order_relaxed);
      spins_ns_.fetch_add((end - begin).count(), std::memory_order_relaxed);
      Metrics::Global().infeed_waits.Add(end, end - begin);
    } else {
      // The wait continues in TakeLater.
      unsuccessful_spin_ns_.store((end - begin).count(), std::memory_order_relaxed);
    }
    return came;
  }

  // A Take, and another one if an element comes within a moment.
  Took TakeOrSpin(int64_t replica, int64_t replicas, Element* element, absl::Status* why) ABSL_LOCKS_EXCLUDED(mutex_) {
    const Took took = Take(replica, replicas, element, why);
    if (took != Took::kNothing || !SpinForNext(replica)) return took;
    return Take(replica, replicas, element, why);
  }

  // Calls back with the next element: at once if it is ready, else on a thread of the executor, or with an error when
  // the queue ends or is closed, or after the limit for waits.
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
    decltype(rows_.Clear()) dropped;  // Destroyed after the lock: elements may be large or shared.
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

  // Fails those who wait; the queue and its elements stay.
  void Interrupt() ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    waiters_.FailAll(Interrupted());
  }

  // Advances all replicas to the row of the furthest one, so that the next run starts with a whole row. No program may
  // use the queue meanwhile.
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

  // What programs took, and how long they waited. A concurrent Close may miscount one element.
  Passed passed() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const int64_t unused = ready();
    const absl::MutexLock lock(&mutex_);
    const int64_t taken = rows_.pushed() - (open_ ? unused : dropped_);
    return {taken, taken * static_cast<int64_t>(bytes_), waiters_.waits() + spins_,
            waiters_.waited().count() + spins_ns_};
  }

  // The most elements that it keeps ready.
  int64_t depth() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return capacity_.elements();
  }

  // Programs that wait for an element.
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

  // The pump sleeps until programs have taken half of the elements, since a wake takes longer than ten small elements.
  // Nobody takes from an incomplete row.
  bool HasMuchRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t left = rows_.held();
    return left <= capacity_.elements() / 2 || left < rows_.width() || !open_;
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

  // The first program that asks decides on the number of replicas.
  absl::Status Refusal(int64_t replica, int64_t replicas) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (Stopped()) return WhyStopped();
    if (replicas_ == 0) {
      if (refused_turn_ != 0 && Turn() == refused_turn_) return Closed();
      if (!rows_.sharing().Divides(replicas)) {
        return absl::InvalidArgumentError("The infeed queue `" + name_ + "` shares its elements in groups of " +
                                          std::to_string(rows_.sharing().size) + " replicas, and the program has " +
                                          std::to_string(replicas) + ". Make the group size a divisor of that.");
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
                                           std::to_string(replicas) + " cannot share it. Make a queue for each.");
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
                                                "`, the limit for waits. Speed the dataset up, or raise the limit with "
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
  std::size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // Of an element.
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;    // Elements left when it was closed.
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  Waiters<Element> waiters_ ABSL_GUARDED_BY(mutex_);

  // Written under mutex_; read without it while spinning.
  std::atomic<int64_t> pushed_{0};
  std::atomic<int64_t> spin_limit_ns_{kLongestSpin.count()};
  std::atomic<int64_t> spins_{0};  // Waits that ended while the program spun.
  std::atomic<int64_t> spins_ns_{0};
  std::atomic<int64_t> unsuccessful_spin_ns_{0};  // Time spun for the element that the program waits for now.

  // Read by each Take, so on a cache line that hardly changes. The caches are made before the number of replicas is
  // set, and stay.
  alignas(64) std::atomic<bool> open_{true};
  const Turns* const turns_;
  std::unique_ptr<ReplicaCache<Element>[]> caches_;
  std::atomic<int64_t> replicas_{0};  // 0 until a program takes.
};

}  // namespace tensorflow_ipu::core
