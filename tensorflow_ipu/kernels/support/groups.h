// The groups of replicas that take part in a collective, and their division among workers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tensorflow_ipu::core {

// The division of a run's replicas into groups of equal size. With 8 replicas in groups of 2:
//
//   consecutive   (0 1) (2 3) (4 5) (6 7)
//   orthogonal    (0 4) (1 5) (2 6) (3 7)
struct Grouping {
  int64_t size = 0;  // 0: all replicas of the run.
  bool orthogonal = false;

  bool operator==(const Grouping& other) const { return size == other.size && orthogonal == other.orthogonal; }
  bool operator!=(const Grouping& other) const { return !(*this == other); }

  bool Divides(int64_t replicas) const { return size == 0 || (size > 0 && replicas % size == 0); }
};

// The group of one replica. The size of the grouping must divide the number of replicas.
struct Group {
  int64_t number;
  int64_t rank;  // The rank of this replica; ranks are in the order of replicas.
  int64_t size;
  int64_t stride;

  static Group Of(const Grouping& grouping, int64_t replica, int64_t replicas) {
    const int64_t size = grouping.size == 0 ? replicas : grouping.size;
    const int64_t groups = replicas / size;
    if (grouping.orthogonal) return {replica % groups, replica / groups, size, groups};
    return {replica / size, replica % size, size, 1};
  }

  int64_t Replica(int64_t of_rank) const { return (stride == 1 ? number * size : number) + of_rank * stride; }
};

// The ranks of a group that belong to one worker. Worker w has the `local` replicas from w * local on, so these ranks
// are consecutive.
struct Share {
  int64_t worker;
  int64_t first;  // The first rank.
  int64_t count;

  bool operator==(const Share& other) const {
    return worker == other.worker && first == other.first && count == other.count;
  }
};

// Returns the shares of all workers that have replicas of the group.
inline std::vector<Share> SharesOf(const Group& group, int64_t local) {
  std::vector<Share> shares;
  for (int64_t rank = 0; rank < group.size;) {
    const int64_t worker = group.Replica(rank) / local;
    const int64_t remaining = (worker + 1) * local - group.Replica(rank);  // The worker's replicas from this one on.
    const int64_t count = std::min(group.size - rank, (remaining + group.stride - 1) / group.stride);
    shares.push_back({worker, rank, count});
    rank += count;
  }
  return shares;
}

// Returns the share of the worker that has the rank `of`.
inline Share ShareOf(const Group& group, int64_t local, int64_t of) {
  const int64_t worker = group.Replica(of) / local;
  const int64_t start = group.Replica(0);
  const int64_t begin = worker * local;
  const int64_t first = begin <= start ? 0 : (begin - start + group.stride - 1) / group.stride;
  const int64_t last = std::min(group.size, ((worker + 1) * local - start + group.stride - 1) / group.stride);
  return {worker, first, last - first};
}

// Returns true if a group has replicas of several workers.
inline bool SpansWorkers(const Grouping& grouping, int64_t local, int64_t workers) {
  if (workers == 1 || grouping.size == 1) return false;
  return grouping.size == 0 || grouping.orthogonal || local % grouping.size != 0;
}

}  // namespace tensorflow_ipu::core
