// The state variable of a program's use of a feed, a call site or random streams.
#pragma once

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

namespace tensorflow_ipu::core {

// The int64 vector in an `IpuFeedState` variable, which the program reads and assigns at each use.
struct ProgramState {
  int64_t number;  // The number in a Registry. Below 0, the state is the order of a program (see OrderedState).
  int64_t replica;
  int64_t replicas;
  int64_t count;  // The number of uses so far. It makes each use depend on the preceding one.

  // Returns the name of the variable with this state before its first use. The state can be restored from the name.
  std::string VariableName() const {
    return "ipu_state_" + std::to_string(number) + "_replica_" + std::to_string(replica) + "_of_" +
           std::to_string(replicas);
  }

  // Returns nothing for a variable that is not a state variable.
  static std::optional<ProgramState> OfVariable(const std::string& name) {
    ProgramState state{};
    constexpr char kFormat[] = "ipu_state_%" SCNd64 "_replica_%" SCNd64 "_of_%" SCNd64;
    if (std::sscanf(name.c_str(), kFormat, &state.number, &state.replica, &state.replicas) != 3) return std::nullopt;
    return state;
  }
};

constexpr int64_t kProgramStateSize = sizeof(ProgramState) / sizeof(int64_t);

// Reads the values one by one. A vector load would stall until the store of the count by the preceding use has
// completed.
[[gnu::always_inline]] inline ProgramState StateAt(const void* data) {
  const auto* const numbers = static_cast<const int64_t*>(data);
  return {numbers[0], numbers[1], numbers[2], numbers[3]};
}

// Writes the state after a use to `next`, which may be `at`.
inline void Advance(const void* at, void* next) {
  constexpr std::size_t kCountAt = offsetof(ProgramState, count) / sizeof(int64_t);
  const auto* const from = static_cast<const int64_t*>(at);
  auto* const to = static_cast<int64_t*>(next);
  if (to != from) std::memcpy(to, from, offsetof(ProgramState, count));
  to[kCountAt] = from[kCountAt] + 1;
}

// The states that a use receives as arguments: the program's order, if there is one, and then the state of the used
// object.
struct OrderedState {
  const void* advanced;  // The first of the states, which the use advances.
  ProgramState used;
  std::size_t states;  // The number of states, 1 or 2, which precede the values.
};

template <typename StateOf>
[[gnu::always_inline]] inline OrderedState OrderedStateAt(StateOf state) {
  const void* const first = state(0);
  const bool ordered = *static_cast<const int64_t*>(first) < 0;
  return {first, StateAt(ordered ? state(1) : first), ordered ? 2U : 1U};
}

}  // namespace tensorflow_ipu::core
