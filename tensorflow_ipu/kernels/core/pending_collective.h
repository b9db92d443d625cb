// The replicas of one group at one use of a call site.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_PENDING_COLLECTIVE_H_
#define TENSORFLOW_IPU_KERNELS_CORE_PENDING_COLLECTIVE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/answers.h"
#include "tensorflow_ipu/kernels/core/deadlines.h"
#include "tensorflow_ipu/kernels/core/exchange.h"
#include "tensorflow_ipu/kernels/core/groups.h"
#include "tensorflow_ipu/kernels/core/rendezvous.h"
#include "tensorflow_ipu/kernels/core/samples.h"
#include "tensorflow_ipu/kernels/core/shares.h"

namespace tensorflow_ipu::core {

inline std::string Listed(const std::vector<int64_t>& replicas) {
  std::string words = replicas.size() == 1 ? "replica " : "replicas ";
  for (std::size_t i = 0; i < replicas.size(); ++i) words += (i == 0 ? "" : ", ") + std::to_string(replicas[i]);
  return words;
}

// Holds the group's replicas of this process. Guarded by the replica group's lock while it is open.
struct ReplicaGroup::PendingCollective {
  std::shared_ptr<CallSite> site;
  Group group;
  Share share;
  std::optional<std::size_t> at;  // Its index in open_; nothing once it is closed.
  int64_t arrived = 0;
  // By place: the rank among the replicas of this process. A null callback has not arrived.
  std::vector<Contribution> contributions;
  std::vector<Deliver> delivers;
  std::vector<Samples::Clock::time_point> since;  // When those who wait arrived.
  std::optional<Deadlines::Ticket> deadline;

  int64_t places() const { return share.count; }
  int64_t Replica(int64_t place) const { return group.Replica(share.first + place); }
  bool HasArrived(int64_t place) const { return delivers[place] != nullptr; }

  std::string Replicas(bool arrived) const;
};

inline std::string ReplicaGroup::PendingCollective::Replicas(bool arrived_ones) const {
  std::vector<int64_t> replicas;
  for (int64_t place = 0; place < places(); ++place) {
    if (HasArrived(place) == arrived_ones) replicas.push_back(Replica(place));
  }
  return Listed(replicas);
}

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_PENDING_COLLECTIVE_H_
