// The steps of LSTM and GRU layers as Keras computes them, forward and backward, with their products of matrices.
#pragma once

#include <cstdint>
#include <vector>

namespace tensorflow_ipu::core {

// A line of the processor's caches.
struct alignas(64) Line {
  float floats[16];
};
using Lines = std::vector<Line>;

// Tensors are row-major: a row is an element of the batch. A step multiplies [state, inputs, 1] by the kernel. Of an
// LSTM this makes input, forget, candidate and output gate. Of a GRU, which resets after the product, it makes update
// and reset gate, and two products for the candidate: of the inputs and of the state.
struct Recurrence {
  int64_t steps, features, units;
  bool lstm;
  const float* kernel;  // [depth(), 4 * units]
  const float* state;   // [rows, units], before the first step; likewise `cell`, of an LSTM.
  const float* cell;
  const bool* mask;     // [rows, steps], or null. A step where it is false changes nothing.
  const float* inputs;  // [rows, steps, features]

  // Results of the steps.
  float* states;     // [rows, steps, units]
  float* saved;      // [rows, steps, saved_size()]: gates, and the cell (LSTM).
  float* last_cell;  // [rows, units], of an LSTM.

  // Gradients of `states` and `last_cell`, from which those of the other tensors are computed. Null for steps forward.
  const float *upstream, *last_upstream;
  float *of_inputs, *of_state, *of_cell;

  int64_t depth() const { return units + features + 1; }
  int64_t saved_size() const { return (lstm ? 5 : 4) * units; }
};

// Computes all steps, or all gradients, of the rows from `begin` to `end`. Returns the gradient of the kernel, of which
// the one of all rows is the sum.
Lines RunSteps(const Recurrence& recurrence, int64_t begin, int64_t end);

}  // namespace tensorflow_ipu::core
