// The infeeds and outfeeds of this process.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow_ipu/kernels/queues/infeed.h"
#include "tensorflow_ipu/kernels/queues/outfeed.h"
#include "tensorflow_ipu/kernels/support/metrics.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"
#include "tensorflow_ipu/kernels/support/registry.h"
#include "tensorflow_ipu/kernels/support/tuning.h"
#include "tensorflow_ipu/kernels/support/turns.h"

namespace tensorflow_ipu {

// An element of a dataset: its tensors or, if it is small, a copy of their bytes. Such a copy is faster than releasing
// tensors on a core other than the pump's. The memory of the copy is returned to the pump.
class InfeedElement {
 public:
  void Hold(std::vector<tensorflow::Tensor>* tensors) {
    copy_.clear();
    tensors_.swap(*tensors);
    tensors->clear();
  }

  void Copy(const std::vector<tensorflow::Tensor>& tensors) {
    copy_.clear();
    tensors_.clear();
    for (const tensorflow::Tensor& tensor : tensors) {
      const auto* const data = static_cast<const std::byte*>(tensor.data());
      copy_.insert(copy_.end(), data, data + tensor.TotalBytes());
    }
  }

  // Copies tensor `i`, which has `sizes[i]` bytes, to `to[i]`.
  void CopyTo(const std::vector<std::size_t>& sizes, void* const* to) const {
    const std::byte* from = copy_.data();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::memcpy(to[i], copy_.empty() ? tensors_[i].data() : from, sizes[i]);
      from += copy_.empty() ? 0 : sizes[i];
    }
  }

  void Prefetch() const {
    for (std::size_t i = 0; i < copy_.size(); i += 64) __builtin_prefetch(copy_.data() + i);
  }

  void Drop() { tensors_.clear(); }

 private:
  std::vector<tensorflow::Tensor> tensors_;
  std::vector<std::byte> copy_;
};

// The queue of one pass over the dataset. All of its elements have the same sizes.
class InfeedQueue : public core::Infeed<InfeedElement> {
 public:
  InfeedQueue(std::string name, int64_t depth, core::Grouping sharing, const core::Turns* turns,
              std::vector<std::size_t> sizes)
      : core::Infeed<InfeedElement>(std::move(name), depth, sharing, turns),
        sizes_(std::move(sizes)),
        element_bytes_(std::accumulate(sizes_.begin(), sizes_.end(), std::size_t{0})) {}

  const std::vector<std::size_t>& sizes() const { return sizes_; }

  // Returns the size of an element.
  std::size_t bytes() const { return element_bytes_; }

  // Returns true if elements are copies of their tensors.
  bool small() const { return element_bytes_ <= core::kCopiedBytes; }

 private:
  const std::vector<std::size_t> sizes_;
  const std::size_t element_bytes_;
};

class Pump;

// An infeed queue of Python. Each pass over the dataset has a new queue, so that an old pump or an old wait can only
// affect the old queue. Thread-safe.
class Infeed {
 public:
  // `turns` orders the runs of the device whose programs use the infeed.
  Infeed(std::string name, int64_t depth, core::Grouping sharing, const core::Turns* turns)
      : name_(std::move(name)), depth_(depth), sharing_(sharing), turns_(turns) {}

  ~Infeed() { Stop(); }

  const std::string& name() const { return name_; }

  // Ends the current pass, and returns the empty queue of the next pass.
  std::shared_ptr<InfeedQueue> Restart(std::vector<std::size_t> sizes);

  // Sets the pump of the pass that uses `queue`. Stops the pump if that pass has ended.
  void SetPump(const std::shared_ptr<InfeedQueue>& queue, std::shared_ptr<Pump> pump);

  // Ends the current pass, and waits up to `timeout` until its pump has released the dataset. Returns false if no pass
  // was active.
  bool Stop(std::chrono::nanoseconds timeout = std::chrono::nanoseconds::zero());

  // Returns null if no pass is active.
  std::shared_ptr<InfeedQueue> queue() const;

  // Returns the totals over all passes.
  core::Passed passed() const;

 private:
  bool Replace(std::shared_ptr<InfeedQueue> queue, std::chrono::nanoseconds timeout);

  const std::string name_;
  const int64_t depth_;
  const core::Grouping sharing_;
  const core::Turns* const turns_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<InfeedQueue> queue_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Pump> pump_ ABSL_GUARDED_BY(mutex_);
  core::Passed before_ ABSL_GUARDED_BY(mutex_);  // The totals of earlier passes.
  // Updated when a pass ends: the turn of the running program, if that program has used the pass. The program may not
  // use a later pass.
  int64_t ended_in_turn_ ABSL_GUARDED_BY(mutex_) = 0;
};

inline core::Registry<Infeed>& Infeeds() { return core::NeverDestroyed<core::Registry<Infeed>>(); }

// Returns the queue of the active pass of infeed `number`, or null if there is none.
inline std::shared_ptr<InfeedQueue> QueueOfInfeed(int64_t number) {
  const std::shared_ptr<Infeed> infeed = Infeeds().Find(number);
  return infeed == nullptr ? nullptr : infeed->queue();
}

absl::Status NotStarted(const std::string& name);

inline core::Registry<core::Outfeed>& Outfeeds() { return core::NeverDestroyed<core::Registry<core::Outfeed>>(); }

// Deletes a queue with its elements. Returns false if there is none.
bool DeleteInfeed(int64_t number);
bool DeleteOutfeed(int64_t number);

// The totals of deleted queues.
struct PassedByDeleted {
  core::Passed infeeds;
  core::Passed outfeeds;
};
PassedByDeleted ReadPassedByDeleted();

}  // namespace tensorflow_ipu
