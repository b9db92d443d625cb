// The seeds that the programs of a device draw for their random numbers: a stream a replica.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_RANDOM_STREAMS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_RANDOM_STREAMS_H_

#include <cstdint>
#include <vector>

#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu::core {

// What one use of random numbers is seeded with: no two draws of a process have the same pair, unless all replicas are
// to draw the same.
struct RandomSeed {
  int64_t key;    // Of the stream.
  int64_t count;  // Of the draw in the stream.
};

// Thread-safe.
class RandomStreams {
 public:
  // Starts all streams from a number that no other process has.
  RandomStreams();

  // Starts all streams anew, from `seed`. With `identical`, all replicas draw what replica 0 draws.
  void Reset(uint64_t seed, bool identical) IPU_EXCLUDES(mutex_);

  // Starts all streams anew, as at first.
  void Forget();

  RandomSeed Draw(int64_t replica) IPU_EXCLUDES(mutex_);

  // The key of the roundings of one run, for a replica; `shared` is the same on all replicas that have run as often. It
  // takes no seed from `Draw`: how a program rounds does not change what it draws.
  uint64_t DrawRounding(int64_t replica, uint64_t* shared) IPU_EXCLUDES(mutex_);

  // Which stream a replica draws from: its own number, or 0 where all draw the same.
  int64_t StreamOf(int64_t replica) const IPU_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  uint64_t seed_ IPU_GUARDED_BY(mutex_);
  bool identical_ IPU_GUARDED_BY(mutex_) = false;
  std::vector<int64_t> counts_ IPU_GUARDED_BY(mutex_);  // A replica: how often it has drawn.
  std::vector<int64_t> runs_ IPU_GUARDED_BY(mutex_);    // A replica: how often it has begun to round.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_RANDOM_STREAMS_H_
