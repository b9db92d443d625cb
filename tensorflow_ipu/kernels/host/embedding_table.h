// Embedding tables on the host. Programs look up and update their rows.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"
#include "tensorflow_ipu/kernels/support/registry.h"

namespace tensorflow_ipu {

struct EmbeddingUpdate {
  float learning_rate;
  int64_t batches;  // The number of mini-batches of a replica per update.
  int64_t site;     // Identifies the lookup whose gradients these are.
  int64_t replica;
};

// A table in memory that the caller of `ipu_embedding_new` owns, and may access between runs. Thread-safe: several rows
// share a lock.
class EmbeddingTable {
 public:
  EmbeddingTable(void* data, int64_t rows, int64_t width, bool half)
      : data_(static_cast<char*>(data)), rows_(rows), width_(width), half_(half) {}

  int64_t width() const { return width_; }
  bool half() const { return half_; }

  // Opens the table for programs, or closes it and drops the accumulated gradients.
  void SetOpen(bool open);

  absl::Status Lookup(const int32_t* indices, int64_t count, void* values);

  // Applies gradients by stochastic gradient descent, or accumulates them.
  absl::Status Update(const int32_t* indices, int64_t count, const void* gradients, const EmbeddingUpdate& how);

 private:
  // The sums for one lookup on one replica. Lookups of several devices may have the same number.
  struct Accumulated {
    absl::Mutex mutex;
    int64_t batches ABSL_GUARDED_BY(mutex) = 0;
    std::map<int32_t, std::vector<float>> rows ABSL_GUARDED_BY(mutex);
  };

  absl::Status Check(const int32_t* indices, int64_t count) const;
  void Descend(int32_t row, const float* gradient, float learning_rate);
  std::vector<float> Wide(const void* gradients, int64_t row) const;
  int64_t Bytes() const { return width_ * (half_ ? 2 : 4); }
  absl::Mutex& LockOf(int32_t row) { return locks_[static_cast<uint32_t>(row) % locks_.size()]; }

  char* const data_;
  const int64_t rows_;
  const int64_t width_;
  const bool half_;
  std::atomic<bool> open_{false};
  std::array<absl::Mutex, 64> locks_;
  absl::Mutex mutex_;
  std::map<std::pair<int64_t, int64_t>, std::shared_ptr<Accumulated>> accumulated_ ABSL_GUARDED_BY(mutex_);
};

inline core::Registry<EmbeddingTable>& EmbeddingTables() {
  return core::NeverDestroyed<core::Registry<EmbeddingTable>>();
}

}  // namespace tensorflow_ipu
