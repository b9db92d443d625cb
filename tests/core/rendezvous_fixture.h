// Replicas that bring numbers to a site.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow_ipu/kernels/core/rendezvous.h"
#include "tests/core/threads.h"

namespace check {

using tensorflow_ipu::core::CallSite;
using tensorflow_ipu::core::Code;
using tensorflow_ipu::core::Collective;
using tensorflow_ipu::core::DataType;
using tensorflow_ipu::core::Kind;
using tensorflow_ipu::core::Reduction;
using tensorflow_ipu::core::ReplicaGroup;
using tensorflow_ipu::core::Status;

inline Collective SumOf(int64_t group_size = 0, bool orthogonal = false) {
  return {Kind::kAllReduce, Reduction::kSum, {group_size, orthogonal}, 0};
}

// One arrival: its numbers, its result, and once `completed` is 1, its status.
struct Arrival {
  std::vector<int64_t> values;
  std::vector<int64_t> result;
  Status status;
  bool at_once = false;
  Count completed;

  bool Await() { return completed.Await(); }
  bool IsOpen() const { return completed.value() == 0; }
  bool Failed(Code code) { return Await() && status.code == code; }
  bool Says(const std::string& words) const { return status.message.find(words) != std::string::npos; }
};

inline tensorflow_ipu::core::Contribution ContributionOf(Arrival& arrival) {
  return {{DataType::kS64, reinterpret_cast<const std::byte*>(arrival.values.data()),
           reinterpret_cast<std::byte*>(arrival.result.data()), static_cast<int64_t>(arrival.values.size()),
           static_cast<int64_t>(arrival.result.size())}};
}

// The result has as many numbers.
inline std::shared_ptr<Arrival> Arrive(CallSite& site, int64_t replica, int64_t replicas, std::vector<int64_t> values,
                                       const Collective& collective = SumOf()) {
  auto arrival = std::make_shared<Arrival>();
  arrival->values = std::move(values);
  arrival->result.resize(arrival->values.size());
  const std::optional<Status> returned =
      site.Arrive(replica, replicas, collective, ContributionOf(*arrival), [arrival](Status status) {
        arrival->status = std::move(status);
        arrival->completed.Add();
      });
  if (returned.has_value()) {
    arrival->status = *returned;
    arrival->at_once = true;
    arrival->completed.Add();
  }
  return arrival;
}

}  // namespace check
