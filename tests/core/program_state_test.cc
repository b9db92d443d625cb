// A use advances its state or the order before it, and a name restores a state.
#include "tensorflow_ipu/kernels/support/program_state.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace {

using namespace tensorflow_ipu::core;

TEST(ProgramState, the_variables_name_says_what_it_holds_at_first) {
  for (const ProgramState& state : {ProgramState{7, 0, 1, 0}, {int64_t{1} << 40, 3, 16, 0}, {-2, 0, 1, 0}}) {
    const auto again = ProgramState::OfVariable(state.VariableName());
    ASSERT_TRUE(again.has_value());
    EXPECT_EQ(again->number, state.number);
    EXPECT_EQ(again->replica, state.replica);
    EXPECT_EQ(again->replicas, state.replicas);
    EXPECT_EQ(again->count, 0);
  }
}

TEST(ProgramState, other_variables_are_no_states) {
  for (const std::string name : {"", "weights", "ipu_state_", "ipu_state_x_replica_0_of_1", "ipu_replica_copy_3"}) {
    EXPECT_FALSE(ProgramState::OfVariable(name).has_value());
  }
}

TEST(ProgramState, a_use_advances_its_count_in_place_or_elsewhere) {
  int64_t memory[] = {7, 1, 2, 41};
  Advance(memory, memory);
  int64_t next[4];
  Advance(memory, next);
  EXPECT_TRUE(std::vector<int64_t>(next, next + 4) == std::vector<int64_t>({7, 1, 2, 43}));
}

TEST(ProgramState, an_order_ahead_of_the_state_is_advanced_in_its_place) {
  const int64_t arguments[2][4] = {{-1, 0, 1, 5}, {7, 1, 2, 0}};
  const auto state = [&](int from) { return [&arguments, from](std::size_t i) { return arguments[from + i]; }; };
  const OrderedState ordered = OrderedStateAt(state(0));
  EXPECT_EQ(ordered.states, 2U);
  EXPECT_EQ(ordered.advanced, arguments[0]);
  EXPECT_EQ(ordered.used.number, 7);
  const OrderedState alone = OrderedStateAt(state(1));
  EXPECT_EQ(alone.states, 1U);
  EXPECT_EQ(alone.advanced, arguments[1]);
  EXPECT_EQ(alone.used.replica, 1);
}

}  // namespace
