// Which workers have which replicas of a group.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_SHARES_H_
#define TENSORFLOW_IPU_KERNELS_CORE_SHARES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensorflow_ipu/kernels/core/groups.h"

namespace tensorflow_ipu::core {

// Worker w has `local` replicas from w * local on, so its ranks in a group are consecutive.
struct Share {
  int64_t worker;
  int64_t first;  // The first rank.
  int64_t count;

  bool operator==(const Share& other) const {
    return worker == other.worker && first == other.first && count == other.count;
  }
};

// Of all workers that have replicas of the group.
inline std::vector<Share> SharesOf(const Group& group, int64_t local) {
  std::vector<Share> shares;
  for (int64_t rank = 0; rank < group.size;) {
    const int64_t worker = group.Replica(rank) / local;
    const int64_t left = (worker + 1) * local - group.Replica(rank);  // Replicas of the worker from this one on.
    const int64_t count = std::min(group.size - rank, (left + group.stride - 1) / group.stride);
    shares.push_back({worker, rank, count});
    rank += count;
  }
  return shares;
}

// The share of the worker that has this rank.
inline Share ShareOf(const Group& group, int64_t local, int64_t of) {
  const int64_t worker = group.Replica(of) / local;
  const int64_t start = group.Replica(0);
  const int64_t begin = worker * local;
  const int64_t first = begin <= start ? 0 : (begin - start + group.stride - 1) / group.stride;
  const int64_t last = std::min(group.size, ((worker + 1) * local - start + group.stride - 1) / group.stride);
  return {worker, first, last - first};
}

// Whether a group has replicas of several workers.
inline bool SpansWorkers(const Grouping& grouping, int64_t local, int64_t workers) {
  if (workers == 1 || grouping.size == 1) return false;
  return grouping.size == 0 || grouping.orthogonal || local % grouping.size != 0;
}

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_SHARES_H_
