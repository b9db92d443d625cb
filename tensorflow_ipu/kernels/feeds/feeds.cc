#include "tensorflow_ipu/kernels/feeds/feeds.h"

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/feeds/pump.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"

namespace tensorflow_ipu {

namespace {

struct Totals {
  absl::Mutex mutex;
  PassedByDeleted passed ABSL_GUARDED_BY(mutex);
};

void AddToTotals(core::Passed PassedByDeleted::* kind, const core::Passed& passed) {
  Totals& totals = core::NeverDestroyed<Totals>();
  const absl::MutexLock lock(&totals.mutex);
  totals.passed.*kind += passed;
}

}  // namespace

bool DeleteInfeed(int64_t number) {
  const std::shared_ptr<Infeed> infeed = Infeeds().Remove(number);
  if (infeed == nullptr) return false;
  infeed->Stop();
  AddToTotals(&PassedByDeleted::infeeds, infeed->passed());
  return true;
}

bool DeleteOutfeed(int64_t number) {
  const std::shared_ptr<core::Outfeed> outfeed = Outfeeds().Remove(number);
  if (outfeed == nullptr) return false;
  outfeed->Close();
  AddToTotals(&PassedByDeleted::outfeeds, outfeed->passed());
  return true;
}

PassedByDeleted ReadPassedByDeleted() {
  Totals& totals = core::NeverDestroyed<Totals>();
  const absl::MutexLock lock(&totals.mutex);
  return totals.passed;
}

absl::Status NotStarted(const std::string& name) {
  return absl::FailedPreconditionError("The infeed queue `" + name +
                                       "` has no dataset iterator: it was not initialized, or it was deleted. "
                                       "Access its `initializer` before a program uses it.");
}

std::shared_ptr<InfeedQueue> Infeed::Restart(std::vector<std::size_t> sizes) {
  auto queue = std::make_shared<InfeedQueue>(name_, depth_, sharing_, turns_, std::move(sizes));
  Replace(queue, std::chrono::nanoseconds::zero());
  return queue;
}

void Infeed::SetPump(const std::shared_ptr<InfeedQueue>& queue, std::shared_ptr<Pump> pump) {
  {
    const absl::MutexLock lock(&mutex_);
    if (queue_ == queue) {
      pump_ = std::move(pump);
      return;
    }
  }
  pump->Stop();
}

bool Infeed::Stop(std::chrono::nanoseconds timeout) { return Replace(nullptr, timeout); }

bool Infeed::Replace(std::shared_ptr<InfeedQueue> queue, std::chrono::nanoseconds timeout) {
  std::shared_ptr<Pump> pump;
  {
    const absl::MutexLock lock(&mutex_);
    if (queue_ != nullptr) {
      // From now on no element is taken, so UsedIn reports reliably whether the running program has used the queue.
      queue_->Close();
      before_ += queue_->passed();
      const int64_t turn = turns_->current();
      if (turn != 0 && queue_->UsedIn(turn)) ended_in_turn_ = turn;
    }
    if (queue != nullptr) queue->Refuse(ended_in_turn_);
    queue.swap(queue_);
    pump.swap(pump_);
    ++core::removals;
  }
  if (pump != nullptr) pump->Stop();
  if (pump != nullptr && timeout.count() > 0) pump->Await(timeout);
  return queue != nullptr;
}

std::shared_ptr<InfeedQueue> Infeed::queue() const {
  const absl::MutexLock lock(&mutex_);
  return queue_;
}

core::Passed Infeed::passed() const {
  const absl::MutexLock lock(&mutex_);
  core::Passed passed = before_;
  if (queue_ != nullptr) passed += queue_->passed();
  return passed;
}

}  // namespace tensorflow_ipu
