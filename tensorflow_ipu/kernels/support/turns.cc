#include "tensorflow_ipu/kernels/support/turns.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/support/waiting.h"

namespace tensorflow_ipu::core {

namespace {

absl::Status Interrupted() {
  return absl::CancelledError("The run was interrupted while it waited for its turn on the device.");
}

}  // namespace

bool Turns::TryBegin(bool lasting) {
  const absl::MutexLock lock(&mutex_);
  if (current_ != 0) return false;
  Begin(lasting);
  return true;
}

int64_t Turns::Request(Callback begin, bool lasting) {
  absl::Status status;
  {
    const absl::MutexLock lock(&mutex_);
    if (current_ == 0) {
      Begin(lasting);
    } else if (lasting_) {
      status = occupied_;
    } else if (interrupted) {
      status = Interrupted();  // The interrupt may already have failed the requests that waited before.
    } else {
      waiting_.push_back({++last_number_, std::move(begin), lasting});
      return last_number_;
    }
  }
  begin(status);
  return 0;
}

void Turns::End() {
  std::deque<Waiting> failed;
  Callback begin;
  {
    const absl::MutexLock lock(&mutex_);
    current_ = 0;
    lasting_ = false;
    if (!waiting_.empty()) {
      Begin(waiting_.front().lasting);
      begin = std::move(waiting_.front().begin);
      waiting_.pop_front();
    }
    if (lasting_) failed.swap(waiting_);
  }
  for (const Waiting& request : failed) request.begin(occupied_);
  if (begin != nullptr) begin(absl::OkStatus());
}

void Turns::Cancel(int64_t request, const absl::Status& why) {
  Callback begin;
  {
    const absl::MutexLock lock(&mutex_);
    const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                    [request](const Waiting& waiting) { return waiting.number == request; });
    if (found == waiting_.end()) return;
    begin = std::move(found->begin);
    waiting_.erase(found);
  }
  begin(why);
}

void Turns::Interrupt() {
  std::deque<Waiting> failed;
  {
    const absl::MutexLock lock(&mutex_);
    failed.swap(waiting_);
  }
  for (const Waiting& request : failed) request.begin(Interrupted());
}

}  // namespace tensorflow_ipu::core
