// The infeeds of this process: a number for each, and behind it the queue and pump of the pass that is under way.
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

// The queue of one pass. All its elements are alike: the pump sees to it.
class InfeedQueue : public core::Infeed<InfeedElement> {
 public:
  // `sizes` are the bytes of each tensor of an element.
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

// An infeed outlives the passes over its dataset: each start makes a new queue, so that what an old pump or an old wait
// still does reaches the old queue alone.
//
// Thread-safe.
class Infeed {
 public:
  // `sharing` says which replicas get the same elements.
  Infeed(std::string name, int64_t depth, core::Grouping sharing = {1, false})
      : name_(std::move(name)), depth_(depth), sharing_(sharing) {}

  Infeed(const Infeed&) = delete;
  Infeed& operator=(const Infeed&) = delete;

  ~Infeed() { Stop(); }

  const std::string& name() const { return name_; }

  // Ends the pass under way, if any, and returns the empty queue of the next one, whose elements have tensors of these
  // sizes in bytes.
  std::shared_ptr<InfeedQueue> Restart(std::vector<std::size_t> sizes);

  // Hands the pass of `queue` the pump that fills it. Stops the pump where that pass is over already.
  void Adopt(const std::shared_ptr<InfeedQueue>& queue, std::shared_ptr<Pump> pump);

  // Ends the pass under way, and waits at most so long until its pump has let the dataset go, so that no element is
  // read later. Returns whether there was one.
  bool Stop(std::chrono::nanoseconds patience = std::chrono::nanoseconds::zero());

  // The queue of the pass under way; null where the infeed was not started, or was stopped.
  std::shared_ptr<InfeedQueue> queue() const;

  // What passed in this pass and those before.
  core::Passed passed() const;

 private:
  // Puts the next pass, if any, in the place of the one under way, and ends that as Stop does.
  bool Replace(std::shared_ptr<InfeedQueue> queue, std::chrono::nanoseconds patience);

  const std::string name_;
  const int64_t depth_;
  const core::Grouping sharing_;

  mutable core::Mutex mutex_;
  std::shared_ptr<InfeedQueue> queue_ IPU_GUARDED_BY(mutex_);
  std::shared_ptr<Pump> pump_ IPU_GUARDED_BY(mutex_);
  core::Passed before_ IPU_GUARDED_BY(mutex_);  // In passes that are over.
};

core::Registry<Infeed>& Infeeds();

// The words for a program that uses an infeed which has no pass under way.
core::Outcome NotStarted(const std::string& name);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_FEEDS_INFEEDS_H_
