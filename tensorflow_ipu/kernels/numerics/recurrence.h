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
// LSTM this makes input, forget, candidate and output gate. Of a GRU, which resets after the product, it makes the
// candidate's product of the inputs, update and reset gate, and the candidate's product of the state; the state is not
// multiplied for the first of them, nor are the inputs for the last.
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
  float *of_inputs, *of_state, *of_cell, *of_kernel;
  float* of_gates;  // [rows, steps, pitch()], of which 4 * units are used.
  float* operands;  // [rows, steps, depth()]: what a step multiplied by the kernel.

  int64_t depth() const { return units + features + 1; }
  // Columns of the kernel that the state is multiplied by, the last ones, or the inputs, the first ones.
  int64_t columns() const { return (lstm ? 4 : 3) * units; }
  int64_t saved_size() const { return (lstm ? 5 : 4) * units; }
  // Numbers a power of two apart would share few sets of the cache, and vectors are read as a whole.
  int64_t pitch() const { return (4 * units + 63) / 64 * 64 + 16; }
};

// The kernel as `RunSteps` reads it.
struct PackedKernel {
  Lines of_state, of_inputs;
};
PackedKernel Pack(const Recurrence& recurrence);

// Computes all steps, or all gradients but that of the kernel, of the rows from `begin` to `end`.
void RunSteps(const Recurrence& recurrence, const PackedKernel& kernel, int64_t begin, int64_t end);

// Computes the kernel's gradient from `begin` to `end`, of its rows, from the gradients of the gates of `rows` rows.
void AddUpKernel(const Recurrence& recurrence, int64_t rows, int64_t begin, int64_t end);

}  // namespace tensorflow_ipu::core
