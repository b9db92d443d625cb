#include "tensorflow_ipu/kernels/precision/quarter.h"

#include <string_view>

namespace tensorflow_ipu::precision {

namespace {

using xla::HloOpcode;

bool IsMarked(const xla::HloInstruction& operation, std::string_view as) {
  const auto& attributes = operation.frontend_attributes().map();
  const auto found = attributes.find("ipu_f8");
  return found != attributes.end() && found->second == as;
}

}  // namespace

bool RoundsToQuarter(const xla::HloInstruction& operation) {
  return operation.opcode() == HloOpcode::kRoundNearestEven && IsMarked(operation, "rounds");
}

bool OverflowsQuarter(const xla::HloInstruction& operation) {
  return operation.opcode() == HloOpcode::kNegate && IsMarked(operation, "overflows");
}

Value RoundedToQuarter(const Emit& emit, const xla::HloInstruction& operation, Key key, uint64_t site) {
  const Value magnitude = operation.operands()[0];
  return emit.Unary(HloOpcode::kFloor, emit.Plus(magnitude, RandomFraction(emit, magnitude, key, site)));
}

}  // namespace tensorflow_ipu::precision
