// Replicas that bring numbers to a site, and short ways to look at their answers.
#ifndef TENSORFLOW_IPU_TESTS_CORE_RENDEZVOUS_FIXTURE_H_
#define TENSORFLOW_IPU_TESTS_CORE_RENDEZVOUS_FIXTURE_H_

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
using tensorflow_ipu::core::Outcome;
using tensorflow_ipu::core::Reduction;
using tensorflow_ipu::core::ReplicaGroup;

inline Collective SumOf(int64_t group_size = 0, bool orthogonal = false) {
  return {Kind::kAllReduce, Reduction::kSum, {group_size, orthogonal}, 0};
}

// One arrival: its numbers, its result, and once `answered` is 1, its answer.
struct Arrival {
  std::vector<int64_t> values;
  std::vector<int64_t> result;
  Outcome outcome;
  bool at_once = false;
  Count answered;

  bool Await() { return answered.Await(); }
  bool IsOpen() const { return answered.value() == 0; }
  bool Failed(Code code) { return Await() && outcome.code == code; }
  bool Says(const std::string& words) const { return outcome.message.find(words) != std::string::npos; }
};

inline tensorflow_ipu::core::Contribution ContributionOf(Arrival& arrival) {
  return {{DataType::kS64, reinterpret_cast<const std::byte*>(arrival.values.data()),
           reinterpret_cast<std::byte*>(arrival.result.data()), static_cast<int64_t>(arrival.values.size()),
           static_cast<int64_t>(arrival.result.size())}};
}

// Brings `values` to a site; the result has as many.
inline std::shared_ptr<Arrival> Arrive(CallSite& site, int64_t replica, int64_t replicas, std::vector<int64_t> values,
                                       const Collective& collective = SumOf()) {
  auto arrival = std::make_shared<Arrival>();
  arrival->values = std::move(values);
  arrival->result.resize(arrival->values.size());
  const std::optional<Outcome> answer =
      site.Arrive(replica, replicas, collective, ContributionOf(*arrival), [arrival](Outcome outcome) {
        arrival->outcome = std::move(outcome);
        arrival->answered.Add();
      });
  if (answer.has_value()) {
    arrival->outcome = *answer;
    arrival->at_once = true;
    arrival->answered.Add();
  }
  return arrival;
}

}  // namespace check

#endif  // TENSORFLOW_IPU_TESTS_CORE_RENDEZVOUS_FIXTURE_H_
