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
      absl::StrCat("An application occupies all IPUs of `/device:IPU:", device,
                   "` until it is stopped. Stop it with `embedded_runtime_stop`, or use another device."));
}

absl::Status OwnTurn(int64_t device) {
  return absl::FailedPreconditionError(absl::StrCat(
      "A function of the host runs a program on `/device:IPU:", device,
      "` while a program on that device waits for the function, directly or through programs of other devices. Neither "
      "could end. Run the second program before or after the first one, or on another device."));
}

// The devices whose runs wait for runs of other devices, because functions of the host run programs there. It detects
// cycles of such waits.
class Waits {
 public:
  // Returns false, and adds nothing, if `other` already waits for `device`.
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

  // Records that a run of `other` has its turn, and that a run of `device` waits for it.
  void Begin(int64_t device, int64_t other) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    served_[other] = device;
  }

  // Records that the run of `other` has ended.
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
  // Maps the device of an active run to the device whose run waits for it.
  std::map<int64_t, int64_t> served_ ABSL_GUARDED_BY(mutex_);
};

Waits& AllWaits() { return core::NeverDestroyed<Waits>(); }

// A request for a turn, which the cancellation of its op ends.
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

// Stores the number of a request. The request may have been cancelled before its number was known.
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
  // Once the turn has begun, the op may end at any time, and its context with it.
  SetNumber(&turns, request.get(),
            turns.Request(
                [cancellation, token, begin = std::move(begin)](const absl::Status& status) {
                  // Does not wait for a callback in progress, since that may be the caller.
                  if (cancellation != nullptr) cancellation->TryDeregisterCallback(token);
                  begin(status);
                },
                runs_application));
}

absl::Status AwaitTurn(tf::OpKernelContext* context, int64_t device) {
  absl::Notification began;
  absl::Status status;
  RequestTurn(context, device, [&](const absl::Status& begun) {
    status = begun;
    began.Notify();
  });
  began.WaitForNotification();
  return status;
}

void EndTurn(int64_t device) {
  AllWaits().End(device);
  TurnsOf(device).End();
}

void RunApplicationOnThisThread() { runs_application = true; }

bool RunsApplication() { return runs_application; }

}  // namespace tensorflow_ipu
