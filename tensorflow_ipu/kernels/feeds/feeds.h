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

// An element of a dataset: its tensors, or a copy of their bytes if it is small. To release tensors on another
// processor than the pump's takes longer than such a copy. Its memory goes back to the pump.
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

  // Copies each tensor `i`, of `sizes[i]` bytes, to `to[i]`.
  void CopyTo(const std::vector<std::size_t>& sizes, void* const* to) const {
    const std::byte* from = copy_.data();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::memcpy(to[i], copy_.empty() ? tensors_[i].data() : from, sizes[i]);
      from += copy_.empty() ? 0 : sizes[i];
    }
  }

  void Prefetch() const {
    for (std::size_t at = 0; at < copy_.size(); at += 64) __builtin_prefetch(copy_.data() + at);
  }

  void Drop() { tensors_.clear(); }

 private:
  std::vector<tensorflow::Tensor> tensors_;
  std::vector<std::byte> copy_;
};

// The queue of one pass, whose elements have the same sizes.
class InfeedQueue : public core::Infeed<InfeedElement> {
 public:
  InfeedQueue(std::string name, int64_t depth, core::Grouping sharing, const core::Turns* turns,
              std::vector<std::size_t> sizes)
      : core::Infeed<InfeedElement>(std::move(name), depth, sharing, turns),
        sizes_(std::move(sizes)),
        element_bytes_(std::accumulate(sizes_.begin(), sizes_.end(), std::size_t{0})) {}

  const std::vector<std::size_t>& sizes() const { return sizes_; }

  // Of an element.
  std::size_t bytes() const { return element_bytes_; }

  // Whether elements are copies of their tensors.
  bool small() const { return element_bytes_ <= core::kCopiedBytes; }

 private:
  const std::vector<std::size_t> sizes_;
  const std::size_t element_bytes_;
};

class Pump;

// Each pass over the dataset has a new queue, so that an old pump or an old wait reaches the old queue alone.
// Thread-safe.
class Infeed {
 public:
  // `turns` are those of the device whose programs it feeds.
  Infeed(std::string name, int64_t depth, core::Grouping sharing, const core::Turns* turns)
      : name_(std::move(name)), depth_(depth), sharing_(sharing), turns_(turns) {}

  ~Infeed() { Stop(); }

  const std::string& name() const { return name_; }

  // Ends the current pass, and returns the empty queue of the next one.
  std::shared_ptr<InfeedQueue> Restart(std::vector<std::size_t> sizes);

  // Sets the pump of the pass of `queue`. Stops the pump if that pass is over.
  void SetPump(const std::shared_ptr<InfeedQueue>& queue, std::shared_ptr<Pump> pump);

  // Ends the current pass, and waits up to `timeout` until its pump has released the dataset. Returns whether there was
  // one.
  bool Stop(std::chrono::nanoseconds timeout = std::chrono::nanoseconds::zero());

  // Null where no pass is under way.
  std::shared_ptr<InfeedQueue> queue() const;

  // In all passes.
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
  core::Passed before_ ABSL_GUARDED_BY(mutex_);  // In earlier passes.
  // The turn on the device in which a pass ended that its program had used. The program may not use a later pass.
  int64_t ended_in_turn_ ABSL_GUARDED_BY(mutex_) = 0;
};

inline core::Registry<Infeed>& Infeeds() { return core::NeverDestroyed<core::Registry<Infeed>>(); }

// The queue of the pass under way of infeed `number`; null if there is none.
inline std::shared_ptr<InfeedQueue> QueueOfInfeed(int64_t number) {
  const std::shared_ptr<Infeed> infeed = Infeeds().Find(number);
  return infeed == nullptr ? nullptr : infeed->queue();
}

absl::Status NotStarted(const std::string& name);

inline core::Registry<core::Outfeed>& Outfeeds() { return core::NeverDestroyed<core::Registry<core::Outfeed>>(); }

// Delete a queue with its elements; return false if there is none.
bool DeleteInfeed(int64_t number);
bool DeleteOutfeed(int64_t number);

// What passed through deleted queues.
struct PassedByDeleted {
  core::Passed infeeds;
  core::Passed outfeeds;
};
PassedByDeleted ReadPassedByDeleted();

}  // namespace tensorflow_ipu
