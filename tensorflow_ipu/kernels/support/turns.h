// Turns on a resource that has one user at a time, such as a device.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace tensorflow_ipu::core {

// Requests get their turns one after the other, in order of arrival. A turn may end on another thread.
//
// A lasting turn has no foreseeable end. While it lasts, no other request waits: all fail with the status `occupied`.
//
// Thread-safe.
class Turns {
 public:
  // Receives OK when the turn of the request has begun, or an error if it will never begin.
  using Callback = std::function<void(const absl::Status&)>;

  explicit Turns(absl::Status occupied) : occupied_(std::move(occupied)) {}

  // Begins a turn if no other turn is active. Returns true if it has begun.
  bool TryBegin(bool lasting = false) ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `begin` now, or later from a call of End or Cancel. Returns a number for Cancel.
  int64_t Request(Callback begin, bool lasting = false) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the active turn.
  void End() ABSL_LOCKS_EXCLUDED(mutex_);

  // Fails a request that waits. Does nothing once its turn has begun.
  void Cancel(int64_t request, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  // Fails all requests that wait.
  void Interrupt() ABSL_LOCKS_EXCLUDED(mutex_);

  // The number of the active turn; 0 if there is none.
  int64_t current() const { return current_; }

  // The number of requests that wait.
  int64_t waiting() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return static_cast<int64_t>(waiting_.size());
  }

 private:
  void Begin(bool lasting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    current_ = ++begun_;
    lasting_ = lasting;
  }

  struct Waiting {
    int64_t number;
    Callback begin;
    bool lasting;
  };

  const absl::Status occupied_;
  mutable absl::Mutex mutex_;
  std::atomic<int64_t> current_{0};               // Written under mutex_.
  bool lasting_ ABSL_GUARDED_BY(mutex_) = false;  // True if the active turn is a lasting one.
  int64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;     // The number of turns so far.
  int64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorflow_ipu::core
