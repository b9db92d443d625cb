// The state of a program's use of a feed, a call site or random streams.
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
  int64_t number;  // Of a Registry; below 0 it is the order of a program (see OrderedState).
  int64_t replica;
  int64_t replicas;
  int64_t count;  // Uses so far: makes each use depend on the one before.

  // The name of the variable that holds this state before its first use, from which it can be restored.
  std::string VariableName() const {
    return "ipu_state_" + std::to_string(number) + "_replica_" + std::to_string(replica) + "_of_" +
           std::to_string(replicas);
  }

  // Nothing for a variable that is no state.
  static std::optional<ProgramState> OfVariable(const std::string& name) {
    ProgramState state{};
    constexpr char kFormat[] = "ipu_state_%" SCNd64 "_replica_%" SCNd64 "_of_%" SCNd64;
    if (std::sscanf(name.c_str(), kFormat, &state.number, &state.replica, &state.replicas) != 3) return std::nullopt;
    return state;
  }
};

constexpr int64_t kProgramStateSize = sizeof(ProgramState) / sizeof(int64_t);

// Reads single numbers: a load of two would wait for the store of the count by the use before.
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

// The state that a use begins with, perhaps after the order of the program.
struct OrderedState {
  const void* advanced;  // The first of the states, which the use advances.
  ProgramState used;
  std::size_t states;  // 1 or 2: where the values begin.
};

template <typename StateOf>
[[gnu::always_inline]] inline OrderedState OrderedStateAt(StateOf state) {
  const void* const first = state(0);
  const bool ordered = *static_cast<const int64_t*>(first) < 0;
  return {first, StateAt(ordered ? state(1) : first), ordered ? 2U : 1U};
}

}  // namespace tensorflow_ipu::core
