// Which replicas of a run take part in a collective, and which workers have them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tensorflow_ipu::core {

// How the replicas of a run are divided into groups of one size. 8 replicas in groups of 2:
//
//   consecutive   (0 1) (2 3) (4 5) (6 7)
//   orthogonal    (0 4) (1 5) (2 6) (3 7)
//
// A plain value.
struct Grouping {
  int64_t size = 0;  // 0: all replicas of the run.
  bool orthogonal = false;

  bool operator==(const Grouping& other) const { return size == other.size && orthogonal == other.orthogonal; }
  bool operator!=(const Grouping& other) const { return !(*this == other); }

  bool Divides(int64_t replicas) const { return size == 0 || (size > 0 && replicas % size == 0); }
};

// The group of one replica. The functions need a grouping that divides the replicas.
struct Group {
  int64_t number;
  int64_t rank;  // Of this replica; ranks are in the order of replicas.
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
