#include "tensorflow_ipu/kernels/replicas/device_turns.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow_ipu/kernels/host/function.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"
#include "tensorflow_ipu/kernels/support/registry.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

thread_local bool runs_application = false;

core::Registry<core::Turns>& AllTurns() { return core::NeverDestroyed<core::Registry<core::Turns>>(); }

absl::Status Occupied(int64_t device) {
  return absl::FailedPreconditionError(
      absl::StrCat("An application has all IPUs of `/device:IPU:", device,
                   "` until it is stopped. Stop it with `embedded_runtime_stop`, or use another device."));
}

absl::Status OwnTurn(int64_t device) {
  return absl::FailedPreconditionError(absl::StrCat(
      "A function of the host runs a program on `/device:IPU:", device,
      "`, where a program runs that waits for the function, itself or through programs of other devices. That run "
      "would wait for the end of the first one. Run it before or after, or on another device."));
}

// Which devices have runs that wait for runs of other devices, as their functions of the host have these run.
class Waits {
 public:
  // Returns false, and adds nothing, if `other` waits for `device` already.
  bool Add(int64_t device, int64_t other) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    if (Leads(other, device)) return false;
    waits_.emplace(device, other);
    return true;
  }

  void Remove(int64_t device, int64_t other) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    const auto [first, last] = waits_.equal_range(device);
    const auto found = std::find_if(first, last, [other](const auto& wait) { return wait.second == other; });
    if (found != last) waits_.erase(found);
  }

  // The run of `other` that `device` waits for has its turn.
  void Begin(int64_t device, int64_t other) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    served_[other] = device;
  }

  // The run of `other` has ended.
  void End(int64_t other) ABSL_LOCKS_EXCLUDED(mutex_) {
    int64_t device = 0;
    {
      const absl::MutexLock lock(&mutex_);
      const auto found = served_.find(other);
      if (found == served_.end()) return;
      device = found->second;
      served_.erase(found);
    }
    Remove(device, other);
  }

 private:
  bool Leads(int64_t from, int64_t to) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (from == to) return true;
    const auto [first, last] = waits_.equal_range(from);
    return std::any_of(first, last,
                       [&](const auto& wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Leads(wait.second, to); });
  }

  absl::Mutex mutex_;
  std::multimap<int64_t, int64_t> waits_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, int64_t> served_ ABSL_GUARDED_BY(mutex_);  // Who waits for the run under way, by its device.
};

Waits& AllWaits() { return core::NeverDestroyed<Waits>(); }

// A request that waits and that the op's cancellation ends.
struct CancellableRequest {
  absl::Mutex mutex;
  bool cancelled ABSL_GUARDED_BY(mutex) = false;
  int64_t number ABSL_GUARDED_BY(mutex) = 0;  // 0 before it is known.
};

void Cancel(core::Turns* turns, CancellableRequest* request) {
  int64_t number = 0;
  {
    const absl::MutexLock lock(&request->mutex);
    request->cancelled = true;
    number = request->number;
  }
  turns->Cancel(number, absl::CancelledError("The run was cancelled while it waited for its turn on the device."));
}

// Notes the number of a request, which may have been cancelled before the number was known.
void SetNumber(core::Turns* turns, CancellableRequest* request, int64_t number) {
  bool cancelled = false;
  {
    const absl::MutexLock lock(&request->mutex);
    request->number = number;
    cancelled = request->cancelled;
  }
  if (cancelled) Cancel(turns, request);
}

}  // namespace

core::Turns& TurnsOf(int64_t device) {
  return *AllTurns().Of(device, [device] { return std::make_shared<core::Turns>(Occupied(device)); });
}

void InterruptWaitingRuns() {
  for (const auto& turns : AllTurns().All()) turns->Interrupt();
}

void RequestTurn(tf::OpKernelContext* context, int64_t device, std::function<void(const absl::Status&)> begin) {
  if (const int64_t caller = HostFunction::DeviceOfThread(); caller >= 0) {
    if (!AllWaits().Add(caller, device)) return begin(OwnTurn(device));
    begin = [caller, device, begin = std::move(begin)](const absl::Status& status) {
      if (status.ok()) {
        AllWaits().Begin(caller, device);
      } else {
        AllWaits().Remove(caller, device);
      }
      begin(status);
    };
  }
  core::Turns& turns = TurnsOf(device);
  if (turns.TryBegin(runs_application)) return begin(absl::OkStatus());
  const auto request = std::make_shared<CancellableRequest>();
  tf::CancellationManager* const cancellation = context->cancellation_manager();
  const tf::CancellationToken token = cancellation == nullptr ? 0 : cancellation->get_cancellation_token();
  if (cancellation != nullptr &&
      !cancellation->RegisterCallback(token, [&turns, request] { Cancel(&turns, request.get()); })) {
    return begin(absl::CancelledError("The run was cancelled before it began."));
  }
  // Once the turn has come, the op may end at any time, and its context with it.
  SetNumber(&turns, request.get(),
            turns.Request(
                [cancellation, token, begin = std::move(begin)](const absl::Status& status) {
                  // Does not wait for a call in progress, which may be the one that ends here.
                  if (cancellation != nullptr) cancellation->TryDeregisterCallback(token);
                  begin(status);
                },
                runs_application));
}

absl::Status AwaitTurn(tf::OpKernelContext* context, int64_t device) {
  absl::Notification came;
  absl::Status status;
  RequestTurn(context, device, [&](const absl::Status& begun) {
    status = begun;
    came.Notify();
  });
  came.WaitForNotification();
  return status;
}

void EndTurn(int64_t device) {
  AllWaits().End(device);
  TurnsOf(device).End();
}

void RunApplicationOnThisThread() { runs_application = true; }

bool RunsApplication() { return runs_application; }

}  // namespace tensorflow_ipu
