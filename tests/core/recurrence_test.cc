// Compares the steps of recurrent layers with their definition in double precision, and their gradients with difference
// quotients.
#include "tensorflow_ipu/kernels/numerics/recurrence.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace {

using namespace tensorflow_ipu::core;

using Floats = std::vector<float>;

struct Layer {
  int64_t rows, steps, features, units;
  bool lstm, masked;
  Floats kernel, state, cell, inputs, states, saved, last_cell;
  Floats upstream, last_upstream, of_inputs, of_kernel, of_state, of_cell;
  std::vector<char> mask;

  Layer(int64_t rows, int64_t steps, int64_t features, int64_t units, bool lstm, bool masked)
      : rows(rows), steps(steps), features(features), units(units), lstm(lstm), masked(masked) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> numbers(-1, 1);
    const auto floats = [&](int64_t count, bool is_random = true) {
      Floats values(static_cast<std::size_t>(count));
      for (float& value : values) value = is_random ? numbers(random) : NAN;
      return values;
    };
    const int64_t wide = 4 * units, all = rows * steps;
    kernel = floats((units + features + 1) * wide), state = floats(rows * units), cell = floats(rows * units);
    inputs = floats(all * features), upstream = floats(all * units), last_upstream = floats(rows * units);
    states = floats(all * units, false), saved = floats(all * (wide + units), false),
    last_cell = floats(rows * units, false);
    of_inputs = floats(all * features, false), of_kernel = floats((units + features + 1) * wide, false);
    of_state = floats(rows * units, false), of_cell = of_state;
    for (int64_t i = 0; i < all; ++i) mask.push_back(i % 3 != 1);
  }

  void Run(bool backward, int64_t part) {
    Recurrence r{};
    r.steps = steps, r.features = features, r.units = units, r.lstm = lstm;
    r.kernel = kernel.data(), r.state = state.data(), r.cell = cell.data(), r.inputs = inputs.data();
    r.mask = masked ? reinterpret_cast<const bool*>(mask.data()) : nullptr;
    r.states = states.data(), r.saved = saved.data(), r.last_cell = last_cell.data();
    if (backward) {
      r.upstream = upstream.data(), r.last_upstream = last_upstream.data(), r.of_inputs = of_inputs.data();
      r.of_state = of_state.data(), r.of_cell = of_cell.data(), r.of_kernel = of_kernel.data();
    }
    Floats of_gates(static_cast<std::size_t>(rows * steps * r.pitch()));
    Floats operands(static_cast<std::size_t>(rows * steps * r.depth()));
    r.of_gates = of_gates.data(), r.operands = operands.data();
    const PackedKernel packed = Pack(r);
    for (int64_t begin = 0; begin < rows; begin += part) RunSteps(r, packed, begin, std::min(rows, begin + part));
    for (int64_t begin = 0; backward && begin < r.depth(); begin += part) {
      AddUpKernel(r, rows, begin, std::min(r.depth(), begin + part));
    }
  }

  // Returns the sum of all results times their upstream gradients. Compares the results if `check` is true.
  double Sum(bool check) const {
    const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const auto at_row = static_cast<std::size_t>(row * units);
      std::vector<double> h(state.begin() + row * units, state.begin() + (row + 1) * units);
      std::vector<double> c(cell.begin() + row * units, cell.begin() + (row + 1) * units);
      for (int64_t step = 0; step < steps; ++step) {
        const auto at = static_cast<std::size_t>(row * steps + step), n = static_cast<std::size_t>(units);
        std::vector<double> next = h, next_c = c;
        for (std::size_t unit = 0; unit < n; ++unit) {
          double p[4];
          for (std::size_t gate = 0; gate < 4; ++gate) {
            const auto wide = 4 * n, column = gate * n + unit, m = static_cast<std::size_t>(features);
            p[gate] = kernel[(n + m) * wide + column];
            for (std::size_t k = 0; (lstm || gate > 0) && k < n; ++k) p[gate] += h[k] * kernel[k * wide + column];
            for (std::size_t k = 0; (lstm || gate < 3) && k < m; ++k) {
              p[gate] += inputs[at * m + k] * kernel[(n + k) * wide + column];
            }
          }
          if (masked && mask[at] == 0) continue;
          if (lstm) {
            next_c[unit] = sigmoid(p[1]) * c[unit] + sigmoid(p[0]) * std::tanh(p[2]);
            next[unit] = sigmoid(p[3]) * std::tanh(next_c[unit]);
          } else {
            const double update = sigmoid(p[1]);
            next[unit] = update * h[unit] + (1 - update) * std::tanh(p[0] + sigmoid(p[2]) * p[3]);
          }
        }
        h = next, c = next_c;
        for (std::size_t unit = 0; unit < n; ++unit) {
          sum += h[unit] * upstream[at * n + unit];
          EXPECT_TRUE(!check || std::fabs(h[unit] - states[at * n + unit]) < 2e-6);
        }
      }
      for (std::size_t unit = 0; lstm && unit < c.size(); ++unit) {
        sum += c[unit] * last_upstream[at_row + unit];
        EXPECT_TRUE(!check || std::fabs(c[unit] - last_cell[at_row + unit]) < 2e-6);
      }
    }
    return sum;
  }

  void CheckGradients(Floats& values, const Floats& gradients) {
    constexpr float kChange = 1.0f / 1024;
    for (std::size_t i = 0; i < values.size(); i += values.size() / 7 + 1) {
      const float before = values[i];
      values[i] = before + kChange;
      const double above = Sum(false), upper = values[i];
      values[i] = before - kChange;
      const double slope = (above - Sum(false)) / (upper - values[i]);
      values[i] = before;
      EXPECT_TRUE(std::fabs(slope - gradients[i]) < 1e-4);
    }
  }
};

TEST(Recurrence, steps_and_gradients_equal_the_definition_for_all_sizes) {
  for (const int64_t units : {1, 5, 16, 33}) {
    for (const int64_t features : {1, 3, 70}) {
      for (const bool lstm : {false, true}) {
        Layer layer(5, 4, features, units, lstm, (units + features) % 2 == 0);
        layer.Run(false, 5);
        layer.Sum(true);
        layer.Run(true, 5);
        layer.CheckGradients(layer.inputs, layer.of_inputs);
        layer.CheckGradients(layer.kernel, layer.of_kernel);
        layer.CheckGradients(layer.state, layer.of_state);
        if (lstm) layer.CheckGradients(layer.cell, layer.of_cell);
      }
    }
  }
}

TEST(Recurrence, steps_of_several_blocks_equal_the_definition) {
  for (const int64_t rows : {1, 3, 150}) {
    Layer layer(rows, rows < 100 ? 150 : 2, 2, 3, rows > 1, true);
    layer.Run(false, rows);
    layer.Sum(true);
    layer.Run(true, rows);
    layer.CheckGradients(layer.inputs, layer.of_inputs);
    layer.CheckGradients(layer.state, layer.of_state);
    layer.CheckGradients(layer.kernel, layer.of_kernel);
  }
}

TEST(Recurrence, any_division_of_the_rows_gives_the_same_bits) {
  Layer whole(9, 3, 7, 20, true, true), divided = whole;
  for (const bool backward : {false, true}) {
    whole.Run(backward, 9);
    divided.Run(backward, 2);
  }
  EXPECT_TRUE(whole.states == divided.states && whole.of_inputs == divided.of_inputs &&
              whole.of_state == divided.of_state);
  EXPECT_EQ(whole.of_kernel, divided.of_kernel);
}

TEST(Recurrence, large_values_and_nans_propagate_as_in_the_definition) {
  Layer layer(1, 1, 1, 1, true, false);
  for (const float bias : {-1e30f, -100.0f, 100.0f, 1e30f}) {
    for (std::size_t gate = 8; gate < 12; ++gate) layer.kernel[gate] = bias;
    layer.Run(false, 1);
    layer.Sum(true);
  }
  layer.inputs[0] = NAN;
  layer.Run(false, 1);
  EXPECT_TRUE(std::isnan(layer.states[0]) && std::isnan(layer.last_cell[0]));
}

}  // namespace
