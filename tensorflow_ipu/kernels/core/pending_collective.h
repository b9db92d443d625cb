// The replicas of one group at one use of a call site: what they bring, and who waits for whom.
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

// In words: "replicas 1, 3".
inline std::string Listed(const std::vector<int64_t>& replicas) {
  std::string words = replicas.size() == 1 ? "replica " : "replicas ";
  for (std::size_t i = 0; i < replicas.size(); ++i) words += (i == 0 ? "" : ", ") + std::to_string(replicas[i]);
  return words;
}

// Of the group's replicas, those of this process are in it. While it is open, the replica group's lock guards it.
struct ReplicaGroup::PendingCollective {
  std::shared_ptr<CallSite> site;
  Group group;  // Of any of its replicas.
  Share share;
  std::optional<std::size_t> at;  // Where it is among the open ones; nothing once it is closed.
  int64_t arrived = 0;
  // By place, which is the rank among the replicas of this process; a null `deliver` has not arrived.
  std::vector<Contribution> contributions;
  std::vector<Deliver> delivers;
  std::vector<Samples::Clock::time_point> since;  // When those arrived who wait, in the order in which they came.
  std::optional<Deadlines::Ticket> deadline;

  int64_t places() const { return share.count; }
  int64_t Replica(int64_t place) const { return group.Replica(share.first + place); }
  bool HasArrived(int64_t place) const { return delivers[place] != nullptr; }

  // The replicas of the group that have arrived, or those that have not, in words: "replicas 1, 3".
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
