#include "tensorflow_ipu/kernels/core/program_state.h"

#include <cinttypes>
#include <cstdio>

namespace tensorflow_ipu::core {

std::string ProgramState::VariableName() const {
  return "ipu_state_" + std::to_string(number) + "_replica_" + std::to_string(replica) + "_of_" +
         std::to_string(replicas);
}

std::optional<ProgramState> ProgramState::OfVariable(const std::string& name) {
  ProgramState state{};
  constexpr char kFormat[] = "ipu_state_%" SCNd64 "_replica_%" SCNd64 "_of_%" SCNd64;
  if (std::sscanf(name.c_str(), kFormat, &state.number, &state.replica, &state.replicas) != 3) return std::nullopt;
  return state;
}

}  // namespace tensorflow_ipu::core
