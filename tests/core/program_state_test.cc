// A use advances its state or the order before it, and a name restores a state.
#include "tensorflow_ipu/kernels/support/program_state.h"

#include <cstdint>
#include <string>
#include <vector>

#include "tests/core/check.h"

namespace {

using namespace tensorflow_ipu::core;

TEST(the_variables_name_says_what_it_holds_at_first) {
  for (const ProgramState& state : {ProgramState{7, 0, 1, 0}, {int64_t{1} << 40, 3, 16, 0}, {-2, 0, 1, 0}}) {
    const auto again = ProgramState::OfVariable(state.VariableName());
    if (!CHECK(again.has_value())) return;
    CHECK_EQ(again->number, state.number);
    CHECK_EQ(again->replica, state.replica);
    CHECK_EQ(again->replicas, state.replicas);
    CHECK_EQ(again->count, 0);
  }
}

TEST(other_variables_are_no_states) {
  for (const std::string name : {"", "weights", "ipu_state_", "ipu_state_x_replica_0_of_1", "ipu_replica_copy_3"}) {
    CHECK(!ProgramState::OfVariable(name).has_value());
  }
}

TEST(a_use_advances_its_count_in_place_or_elsewhere) {
  int64_t memory[] = {7, 1, 2, 41};
  Advance(memory, memory);
  int64_t next[4];
  Advance(memory, next);
  CHECK(std::vector<int64_t>(next, next + 4) == std::vector<int64_t>({7, 1, 2, 43}));
}

TEST(an_order_ahead_of_the_state_is_advanced_in_its_place) {
  const int64_t arguments[2][4] = {{-1, 0, 1, 5}, {7, 1, 2, 0}};
  const auto state = [&](int from) { return [&arguments, from](std::size_t i) { return arguments[from + i]; }; };
  const OrderedState ordered = OrderedStateAt(state(0));
  CHECK_EQ(ordered.states, 2U);
  CHECK(ordered.advanced == arguments[0]);
  CHECK_EQ(ordered.used.number, 7);
  const OrderedState alone = OrderedStateAt(state(1));
  CHECK_EQ(alone.states, 1U);
  CHECK(alone.advanced == arguments[1]);
  CHECK_EQ(alone.used.replica, 1);
}

}  // namespace
