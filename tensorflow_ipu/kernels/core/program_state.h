// The state by which a program names what it uses of the process: a feed, the site of a collective, random streams.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_PROGRAM_STATE_H_
#define TENSORFLOW_IPU_KERNELS_CORE_PROGRAM_STATE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

namespace tensorflow_ipu::core {

// The elements of the int64 vector behind `IpuFeedState`, a variable that the program reads and assigns at each use. A
// plain value.
struct ProgramState {
  int64_t number;  // In a Registry; below 0, the state is the order of a program (see OrderedState).
  int64_t lane;    // Which replica the program is.
  int64_t lanes;   // How many replicas there are.
  int64_t count;   // How many uses there were: what makes each use depend on the one before.

  // The name of the variable that holds this before its first use. It says all but the count, which is 0 then, so that
  // the variable can be written again.
  std::string VariableName() const;

  // What the variable of this name holds before its first use; nothing for a variable that is no state.
  static std::optional<ProgramState> OfVariable(const std::string& name);
};

constexpr int64_t kProgramStateSize = sizeof(ProgramState) / sizeof(int64_t);

// Reads the numbers one by one: a load of two of them would wait until the count that the use before has stored is
// through with its way to memory.
[[gnu::always_inline]] inline ProgramState StateAt(const void* data) {
  const auto* const numbers = static_cast<const int64_t*>(data);
  return {numbers[0], numbers[1], numbers[2], numbers[3]};
}

// Writes to `next` the state after the use of which `at` is the state before. Both may be the same memory.
inline void Advance(const void* at, void* next) {
  constexpr std::size_t kCountAt = offsetof(ProgramState, count) / sizeof(int64_t);
  const auto* const from = static_cast<const int64_t*>(at);
  auto* const to = static_cast<int64_t*>(next);
  if (to != from) std::memcpy(to, from, offsetof(ProgramState, count));
  to[kCountAt] = from[kCountAt] + 1;
}

// What a use is called with ahead of its values: its state, or the order of the program and its state.
struct OrderedState {
  const void* advanced;  // The memory of the first of the two, which is what the use advances.
  ProgramState used;     // A copy.
  int64_t states;        // How many there are, 1 or 2: where the values begin.
};

// `state(i)` is the memory of argument i.
template <typename StateOf>
[[gnu::always_inline]] inline OrderedState OrderedStateAt(StateOf state) {
  const void* const first = state(0);
  const bool ordered = *static_cast<const int64_t*>(first) < 0;
  return {first, StateAt(ordered ? state(1) : first), ordered ? 2 : 1};
}

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_PROGRAM_STATE_H_
