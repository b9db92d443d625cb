// The random seeds that the programs of a device draw: a stream for each replica.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tensorflow_ipu::core {

// No two draws of a process have the same pair, unless replicas are to draw the same.
struct RandomSeed {
  int64_t key;    // Of the stream.
  int64_t count;  // Of the draw in the stream.
};

// Thread-safe.
class RandomStreams {
 public:
  RandomStreams();

  // With `identical`, all replicas draw what replica 0 draws.
  void Reset(uint64_t seed, bool identical) ABSL_LOCKS_EXCLUDED(mutex_);

  // Starts from new entropy.
  void Forget();

  RandomSeed Draw(int64_t replica) ABSL_LOCKS_EXCLUDED(mutex_);

  // The key of the roundings of a run; `shared` is the same for all replicas. Draw is not affected.
  uint64_t DrawRounding(int64_t replica, uint64_t* shared) ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t StreamOf(int64_t replica) const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return identical_ ? 0 : replica;
  }

 private:
  mutable absl::Mutex mutex_;
  uint64_t seed_ ABSL_GUARDED_BY(mutex_);
  bool identical_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<int64_t> counts_ ABSL_GUARDED_BY(mutex_);  // Draws by replica.
  std::vector<int64_t> runs_ ABSL_GUARDED_BY(mutex_);    // Runs by replica.
};

}  // namespace tensorflow_ipu::core
