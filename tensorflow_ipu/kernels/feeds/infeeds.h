// The infeeds of this process, each with the queue and the pump of its current pass.
#ifndef TENSORFLOW_IPU_KERNELS_FEEDS_INFEEDS_H_
#define TENSORFLOW_IPU_KERNELS_FEEDS_INFEEDS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow_ipu/kernels/core/infeed.h"
#include "tensorflow_ipu/kernels/core/metrics.h"
#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/registry.h"
#include "tensorflow_ipu/kernels/core/tuning.h"
#include "tensorflow_ipu/kernels/feeds/element.h"

namespace tensorflow_ipu {

// The queue of one pass, whose elements have the same sizes.
class InfeedQueue : public core::Infeed<InfeedElement> {
 public:
  InfeedQueue(std::string name, int64_t depth, core::Grouping sharing, std::vector<std::size_t> sizes)
      : core::Infeed<InfeedElement>(std::move(name), depth, sharing),
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
  Infeed(std::string name, int64_t depth, core::Grouping sharing = {1, false})
      : name_(std::move(name)), depth_(depth), sharing_(sharing) {}

  Infeed(const Infeed&) = delete;
  Infeed& operator=(const Infeed&) = delete;

  ~Infeed() { Stop(); }

  const std::string& name() const { return name_; }

  // Ends the current pass, and returns the empty queue of the next one.
  std::shared_ptr<InfeedQueue> Restart(std::vector<std::size_t> sizes);

  // Sets the pump of the pass of `queue`. Stops the pump if that pass is over.
  void Adopt(const std::shared_ptr<InfeedQueue>& queue, std::shared_ptr<Pump> pump);

  // Ends the current pass, and waits up to `timeout` until its pump has released the dataset. Returns whether there was
  // one.
  bool Stop(std::chrono::nanoseconds patience = std::chrono::nanoseconds::zero());

  // Null where no pass is under way.
  std::shared_ptr<InfeedQueue> queue() const;

  // In all passes.
  core::Passed passed() const;

 private:
  bool Replace(std::shared_ptr<InfeedQueue> queue, std::chrono::nanoseconds patience);

  const std::string name_;
  const int64_t depth_;
  const core::Grouping sharing_;

  mutable core::Mutex mutex_;
  std::shared_ptr<InfeedQueue> queue_ IPU_GUARDED_BY(mutex_);
  std::shared_ptr<Pump> pump_ IPU_GUARDED_BY(mutex_);
  core::Passed before_ IPU_GUARDED_BY(mutex_);  // In earlier passes.
};

core::Registry<Infeed>& Infeeds();

core::Outcome NotStarted(const std::string& name);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_FEEDS_INFEEDS_H_
