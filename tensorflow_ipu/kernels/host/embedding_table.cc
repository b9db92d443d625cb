#include "tensorflow_ipu/kernels/host/embedding_table.h"

#include <cstring>
#include <string>

#include "Eigen/Core"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/support/metrics.h"

namespace tensorflow_ipu {

namespace {

const core::Counter lookups("EmbeddingLookups"), rows_read("EmbeddingRowsRead");
const core::Counter updates("EmbeddingUpdates"), rows_updated("EmbeddingRowsUpdated");

}  // namespace

void EmbeddingTable::SetOpen(bool open) {
  open_ = open;
  const absl::MutexLock lock(&mutex_);
  accumulated_.clear();
}

absl::Status EmbeddingTable::Lookup(const int32_t* indices, int64_t count, void* values) {
  absl::Status status = Check(indices, count);
  if (!status.ok()) return status;
  lookups.Add();
  rows_read.Add(count);
  auto* to = static_cast<char*>(values);
  for (int64_t i = 0; i < count; ++i, to += Bytes()) {
    const absl::MutexLock lock(&LockOf(indices[i]));
    std::memcpy(to, data_ + indices[i] * Bytes(), static_cast<std::size_t>(Bytes()));
  }
  return absl::OkStatus();
}

absl::Status EmbeddingTable::Update(const int32_t* indices, int64_t count, const void* gradients,
                                    const EmbeddingUpdate& how) {
  absl::Status status = Check(indices, count);
  if (!status.ok()) return status;
  updates.Add();
  rows_updated.Add(count);  // Counts the rows passed in. With accumulation, the table changes later.
  if (how.batches <= 1) {
    for (int64_t i = 0; i < count; ++i) {
      if (half_) {
        Descend(indices[i], Wide(gradients, i).data(), how.learning_rate);
      } else {
        Descend(indices[i], static_cast<const float*>(gradients) + i * width_, how.learning_rate);
      }
    }
    return absl::OkStatus();
  }
  std::shared_ptr<Accumulated> accumulated;  // Kept alive here, since closing the table drops it.
  {
    const absl::MutexLock lock(&mutex_);
    std::shared_ptr<Accumulated>& entry = accumulated_[{how.replica, how.site}];
    if (entry == nullptr) entry = std::make_shared<Accumulated>();
    accumulated = entry;
  }
  const absl::MutexLock adding(&accumulated->mutex);
  for (int64_t i = 0; i < count; ++i) {
    const std::vector<float> gradient = Wide(gradients, i);
    std::vector<float>& sum = accumulated->rows[indices[i]];
    sum.resize(static_cast<std::size_t>(width_));
    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += gradient[j];
  }
  if (++accumulated->batches < how.batches) return absl::OkStatus();
  for (const auto& [row, sum] : accumulated->rows) Descend(row, sum.data(), how.learning_rate);
  accumulated->batches = 0;
  accumulated->rows.clear();
  return absl::OkStatus();
}

absl::Status EmbeddingTable::Check(const int32_t* indices, int64_t count) const {
  if (!open_) {
    return absl::FailedPreconditionError(
        "the embedding is not registered: run the program in a block `with embedding.register():`.");
  }
  for (int64_t i = 0; i < count; ++i) {
    if (indices[i] < 0 || indices[i] >= rows_) {
      return absl::OutOfRangeError("row " + std::to_string(indices[i]) + " is not one of the embedding's " +
                                   std::to_string(rows_) + " rows: do not disable `clip_indices` of `lookup`.");
    }
  }
  return absl::OkStatus();
}

void EmbeddingTable::Descend(int32_t row, const float* gradient, float learning_rate) {
  char* const begin = data_ + row * Bytes();
  const absl::MutexLock lock(&LockOf(row));
  if (half_) {
    auto* const values = reinterpret_cast<Eigen::half*>(begin);
    for (int64_t j = 0; j < width_; ++j) {
      values[j] = Eigen::half(static_cast<float>(values[j]) - learning_rate * gradient[j]);
    }
  } else {
    auto* const values = reinterpret_cast<float*>(begin);
    for (int64_t j = 0; j < width_; ++j) values[j] -= learning_rate * gradient[j];
  }
}

std::vector<float> EmbeddingTable::Wide(const void* gradients, int64_t row) const {
  std::vector<float> wide(static_cast<std::size_t>(width_));
  for (int64_t j = 0; j < width_; ++j) {
    const int64_t index = row * width_ + j;
    wide[static_cast<std::size_t>(j)] = half_ ? static_cast<float>(static_cast<const Eigen::half*>(gradients)[index])
                                              : static_cast<const float*>(gradients)[index];
  }
  return wide;
}

}  // namespace tensorflow_ipu
