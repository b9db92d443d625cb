// The random seeds that the programs of a device draw, from one stream per replica.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tensorflow_ipu::core {

// A seed. No two draws of a process have the same pair, unless replicas are configured to draw the same values.
struct RandomSeed {
  int64_t key;    // Identifies the stream.
  int64_t count;  // The index of the draw in the stream.
};

// The random streams of one device. Thread-safe.
class RandomStreams {
 public:
  RandomStreams();

  // With `identical`, all replicas draw the values of replica 0.
  void Reset(uint64_t seed, bool identical) ABSL_LOCKS_EXCLUDED(mutex_);

  // Restarts from new entropy.
  void Forget();

  RandomSeed Draw(int64_t replica) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the key of a run's stochastic rounding. Sets `*shared` to a key that is the same for all replicas. Does not
  // affect Draw.
  uint64_t DrawRounding(int64_t replica, uint64_t* shared) ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t StreamOf(int64_t replica) const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return identical_ ? 0 : replica;
  }

 private:
  mutable absl::Mutex mutex_;
  uint64_t seed_ ABSL_GUARDED_BY(mutex_);
  bool identical_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<int64_t> counts_ ABSL_GUARDED_BY(mutex_);  // Draws, by replica.
  std::vector<int64_t> runs_ ABSL_GUARDED_BY(mutex_);    // Runs, by replica.
};

}  // namespace tensorflow_ipu::core
