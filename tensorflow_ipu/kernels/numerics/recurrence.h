// The steps of LSTM and GRU layers as Keras computes them, forward and backward, with their matrix products.
#pragma once

#include <cstdint>
#include <vector>

namespace tensorflow_ipu::core {

// A cache line.
struct alignas(64) Line {
  float floats[16];
};
using Lines = std::vector<Line>;

// Tensors are row-major: a row is an element of the batch. Each step multiplies [state, inputs, 1] by the kernel.
//
// For an LSTM the product consists of the input, forget, candidate and output gates. A GRU applies its reset gate after
// the product (Keras's `reset_after`). Its product has four parts: the candidate's part from the inputs, the update
// gate, the reset gate, and the candidate's part from the state. The first part does not use the state, and the last
// one does not use the inputs.
//
// `of_x` is the gradient of the tensor `x`.
struct Recurrence {
  int64_t steps, features, units;
  bool lstm;
  const float* kernel;  // [depth(), 4 * units]
  const float* state;   // [rows, units], before the first step. An LSTM has `cell` too, of the same shape.
  const float* cell;
  const bool* mask;     // [rows, steps], or null. A false element means that the step changes nothing.
  const float* inputs;  // [rows, steps, features]

  // Results of the steps.
  float* states;     // [rows, steps, units]
  float* saved;      // [rows, steps, saved_size()]: the gates and, for an LSTM, the cell.
  float* last_cell;  // [rows, units], for an LSTM.

  // The gradients of `states` and `last_cell`, which are the inputs of the backward pass. Null in the forward pass.
  const float *upstream, *last_upstream;
  float *of_inputs, *of_state, *of_cell, *of_kernel;
  float* of_gates;  // [rows, steps, pitch()], of which [rows, steps, 4 * units] are used.
  float* operands;  // [rows, steps, depth()]: the vectors that the steps multiplied by the kernel.

  int64_t depth() const { return units + features + 1; }
  // The number of kernel columns that multiply the state. They are the last columns. Equally many, the first columns,
  // multiply the inputs.
  int64_t columns() const { return (lstm ? 4 : 3) * units; }
  int64_t saved_size() const { return (lstm ? 5 : 4) * units; }
  // The length of a padded row of `of_gates`. Whole vectors are read, also at its end. A power of two would map many
  // rows to the same cache set.
  int64_t pitch() const { return (4 * units + 63) / 64 * 64 + 16; }
};

// The kernel in the layout that `RunSteps` reads.
struct PackedKernel {
  Lines of_state, of_inputs;
};
PackedKernel Pack(const Recurrence& recurrence);

// Computes all steps, or all gradients except the kernel's, for the rows from `begin` to `end`.
void RunSteps(const Recurrence& recurrence, const PackedKernel& kernel, int64_t begin, int64_t end);

// Computes the rows from `begin` to `end` of the kernel's gradient. Sums over the gates' gradients of `rows` elements
// of the batch.
void AddUpKernel(const Recurrence& recurrence, int64_t rows, int64_t begin, int64_t end);

}  // namespace tensorflow_ipu::core
