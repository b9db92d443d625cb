// Replicas that contribute numbers at a call site.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow_ipu/kernels/collectives/rendezvous.h"
#include "tests/core/threads.h"

namespace check {

using tensorflow_ipu::core::CallSite;
using tensorflow_ipu::core::Collective;
using tensorflow_ipu::core::DataType;
using tensorflow_ipu::core::Kind;
using tensorflow_ipu::core::Reduction;
using tensorflow_ipu::core::ReplicaGroup;

inline Collective SumOf(int64_t group_size = 0, bool orthogonal = false) {
  return {Kind::kAllReduce, Reduction::kSum, {group_size, orthogonal}, 0};
}

// The end of a call: its status, once `completed` is 1.
struct Ending {
  absl::Status status;
  Count completed;

  bool Await() { return completed.Await(); }
  bool IsOpen() const { return completed.value() == 0; }
  bool EndsWith(absl::StatusCode code) { return Await() && status.code() == code; }
  bool HasMessage(const std::string& text) const { return status.message().find(text) != std::string::npos; }
};

inline std::function<void(absl::Status)> NoteIn(std::shared_ptr<Ending> ending) {
  return [ending = std::move(ending)](absl::Status status) {
    ending->status = std::move(status);
    ending->completed.Add();
  };
}

// One arrival with its numbers and its result.
struct Arrival : Ending {
  std::vector<int64_t> values;
  std::vector<int64_t> result;
  bool at_once = false;

  bool HasResult(const std::vector<int64_t>& numbers) { return EndsWith(absl::StatusCode::kOk) && result == numbers; }
};

inline tensorflow_ipu::core::Contribution ContributionOf(Arrival& arrival) {
  return {{DataType::kS64, reinterpret_cast<const std::byte*>(arrival.values.data()),
           reinterpret_cast<std::byte*>(arrival.result.data()), static_cast<int64_t>(arrival.values.size()),
           static_cast<int64_t>(arrival.result.size())}};
}

// Lets a replica arrive. The result has as many numbers as `values`, or `result_size`.
inline std::shared_ptr<Arrival> Arrive(CallSite& site, int64_t replica, int64_t replicas, std::vector<int64_t> values,
                                       const Collective& collective = SumOf(),
                                       std::optional<std::size_t> result_size = std::nullopt) {
  auto arrival = std::make_shared<Arrival>();
  arrival->values = std::move(values);
  arrival->result.resize(result_size.value_or(arrival->values.size()), -1);
  const std::optional<absl::Status> returned =
      site.Arrive(replica, replicas, collective, ContributionOf(*arrival), NoteIn(arrival));
  arrival->at_once = returned.has_value();
  if (returned.has_value()) NoteIn(arrival)(*returned);
  return arrival;
}

}  // namespace check
