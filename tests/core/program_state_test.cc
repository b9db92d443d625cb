// Tests that a use advances its state or the order that precedes it, and that a name restores a state.
#include "tensorflow_ipu/kernels/support/program_state.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace {

using namespace tensorflow_ipu::core;

TEST(ProgramState, the_name_of_a_variable_contains_its_initial_state) {
  for (const ProgramState& state : {ProgramState{7, 0, 1, 0}, {int64_t{1} << 40, 3, 16, 0}, {-2, 0, 1, 0}}) {
    const auto restored = ProgramState::OfVariable(state.VariableName());
    ASSERT_TRUE(restored.has_value());
    EXPECT_EQ(restored->number, state.number);
    EXPECT_EQ(restored->replica, state.replica);
    EXPECT_EQ(restored->replicas, state.replicas);
    EXPECT_EQ(restored->count, 0);
  }
}

TEST(ProgramState, other_variables_are_no_state_variables) {
  for (const std::string name : {"", "weights", "ipu_state_", "ipu_state_x_replica_0_of_1", "ipu_replica_copy_3"}) {
    EXPECT_FALSE(ProgramState::OfVariable(name).has_value());
  }
}

TEST(ProgramState, a_use_advances_its_count_in_place_or_in_other_memory) {
  int64_t memory[] = {7, 1, 2, 41};
  Advance(memory, memory);
  int64_t next[4];
  Advance(memory, next);
  EXPECT_TRUE(std::vector<int64_t>(next, next + 4) == std::vector<int64_t>({7, 1, 2, 43}));
}

TEST(ProgramState, an_order_before_the_state_is_advanced_instead) {
  const int64_t arguments[2][4] = {{-1, 0, 1, 5}, {7, 1, 2, 0}};
  const auto state = [&](int from) { return [&arguments, from](std::size_t i) { return arguments[from + i]; }; };
  const OrderedState ordered = OrderedStateAt(state(0));
  EXPECT_EQ(ordered.states, 2U);
  EXPECT_EQ(ordered.advanced, arguments[0]);
  EXPECT_EQ(ordered.used.number, 7);
  const OrderedState unordered = OrderedStateAt(state(1));
  EXPECT_EQ(unordered.states, 1U);
  EXPECT_EQ(unordered.advanced, arguments[1]);
  EXPECT_EQ(unordered.used.replica, 1);
}

}  // namespace
