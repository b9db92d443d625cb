// The tables of embeddings that stay on the host: programs look rows up in them, and change these.
#ifndef TENSORFLOW_IPU_KERNELS_HOST_EMBEDDING_TABLE_H_
#define TENSORFLOW_IPU_KERNELS_HOST_EMBEDDING_TABLE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/outcome.h"
#include "tensorflow_ipu/kernels/core/registry.h"

namespace tensorflow_ipu {

// What programs have asked of all tables so far.
struct EmbeddingTraffic {
  std::atomic<int64_t> lookups{0};
  std::atomic<int64_t> rows_read{0};
  std::atomic<int64_t> updates{0};
  std::atomic<int64_t> rows_updated{0};  // As they were given: with accumulation, they change the table later.

  // Never destroyed: threads of programs may outlive static destructors.
  static EmbeddingTraffic& Global() {
    static auto* const traffic = new EmbeddingTraffic();
    return *traffic;
  }
};

// How the gradients of a lookup change the table.
struct EmbeddingUpdate {
  float learning_rate;
  int64_t batches;  // So many mini-batches make an update of a replica.
  int64_t site;     // The lookup that the gradients are of.
  int64_t replica;
};

// Does not own its memory: who opened the table keeps that, and reads and writes it between runs.
//
// Thread-safe, but for the memory: a row is read and written under a lock that it shares with others.
class EmbeddingTable {
 public:
  // `half`: the rows are float16, and else float32.
  EmbeddingTable(void* data, int64_t rows, int64_t width, bool half)
      : data_(static_cast<char*>(data)), rows_(rows), width_(width), half_(half) {}

  int64_t width() const { return width_; }
  bool half() const { return half_; }

  // Programs can use an open table. What was accumulated and not applied is gone when it is closed.
  void SetOpen(bool open);

  // Copies rows to `values`, [count, width].
  core::Outcome Look(const int32_t* indices, int64_t count, void* values);

  // Takes the gradients of rows, [count, width], off these by stochastic gradient descent, or accumulates them.
  core::Outcome Update(const int32_t* indices, int64_t count, const void* gradients, const EmbeddingUpdate& how);

 private:
  // Of one lookup on one replica: the sum for each row so far. Programs of several devices may have lookups of one
  // number.
  struct Accumulated {
    core::Mutex mutex;
    int64_t batches IPU_GUARDED_BY(mutex) = 0;
    std::map<int32_t, std::vector<float>> rows IPU_GUARDED_BY(mutex);
  };

  core::Outcome Check(const int32_t* indices, int64_t count) const;
  void Descend(int32_t row, const float* gradient, float learning_rate);
  std::vector<float> Wide(const void* gradients, int64_t row) const;
  int64_t Bytes() const { return width_ * (half_ ? 2 : 4); }
  core::Mutex& LockOf(int32_t row) { return locks_[static_cast<uint32_t>(row) % locks_.size()]; }

  char* const data_;
  const int64_t rows_;
  const int64_t width_;
  const bool half_;
  std::atomic<bool> open_{false};
  std::array<core::Mutex, 64> locks_;
  core::Mutex mutex_;
  std::map<std::pair<int64_t, int64_t>, std::shared_ptr<Accumulated>> accumulated_ IPU_GUARDED_BY(mutex_);
};

inline core::Registry<EmbeddingTable>& EmbeddingTables() {
  static auto* const tables = new core::Registry<EmbeddingTable>();
  return *tables;
}

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_EMBEDDING_TABLE_H_
