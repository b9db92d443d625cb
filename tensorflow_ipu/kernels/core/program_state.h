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

inline ProgramState StateAt(const void* data) {
  ProgramState state;
  std::memcpy(&state, data, sizeof(state));
  return state;
}

// Writes the state after the use of which `at` is the state before. The count goes out as the one number that it is: as
// a part of a wider store, it would first have to wait for its own way through memory.
inline void Advance(const ProgramState& at, void* next) {
  constexpr std::size_t kCountAt = offsetof(ProgramState, count);
  std::memcpy(next, &at, kCountAt);
  const int64_t count = at.count + 1;
  std::memcpy(static_cast<char*>(next) + kCountAt, &count, sizeof(count));
}

// What a use is called with ahead of its values: its state, or the order of the program and its state. The first of
// the two is what the use advances. Both are copies: the results of the call may lie where they were.
struct OrderedState {
  ProgramState advanced;
  ProgramState used;
  int64_t states;  // How many there are, 1 or 2: where the values begin.
};

// `state(i)` is the memory of argument i.
template <typename StateOf>
OrderedState OrderedStateAt(StateOf state) {
  const ProgramState first = StateAt(state(0));
  if (first.number >= 0) return {first, first, 1};
  return {first, StateAt(state(1)), 2};
}

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_PROGRAM_STATE_H_
