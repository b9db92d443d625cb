// Which replicas of a run take part in a collective.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_GROUPS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_GROUPS_H_

#include <cstdint>

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

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_GROUPS_H_
