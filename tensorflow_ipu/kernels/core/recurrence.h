// The steps of LSTM and GRU layers as Keras computes them, forward and backward. Products of the inputs, and gradients
// of weights, are products of matrices over all steps, and are not computed here.
#pragma once

#include <cstdint>
#include <vector>

namespace tensorflow_ipu::core {

// A line of the processor's caches.
struct alignas(64) Line {
  float floats[16];
};
using Lines = std::vector<Line>;

// Tensors are row-major: a row is an element of the batch. The gates of an LSTM are input, forget, candidate and
// output; those of a GRU, which resets after the product, are update, reset and candidate.
struct Recurrence {
  int64_t steps, units;
  bool lstm;
  const float* kernel;  // [units, gates * units]
  const float* state;   // [rows, units], before the first step; likewise `cell`, of an LSTM.
  const float* cell;
  const bool* mask;     // [rows, steps], or null. A step where it is false changes nothing.
  const float* inputs;  // [rows, steps, gates * units], the products of the inputs, with their bias.
  const float* bias;    // [gates * units], of the recurrent products of a GRU.

  // Results of the steps.
  float* states;  // [rows, steps, units]
  float* saved;   // [rows, steps, saved_size()]: gates, and the cell (LSTM) or the candidate's recurrent product (GRU).
  float* last_cell;  // [rows, units], of an LSTM.

  // Gradients of `states` and `last_cell`, from which those of `inputs`, `state` and `cell` are computed, and those of
  // the recurrent products. Of an LSTM these are those of the inputs. Null for steps forward.
  const float *upstream, *last_upstream;
  float *of_inputs, *of_state, *of_cell, *of_products;

  int64_t gates() const { return lstm ? 4 : 3; }
  int64_t saved_size() const { return (gates() + 1) * units; }
};

// Returns the kernel as `RunSteps` reads it.
Lines PackedKernel(const Recurrence& recurrence);

// Computes all steps, or all gradients, of the rows from `begin` to `end`.
void RunSteps(const Recurrence& recurrence, const Lines& kernel, int64_t begin, int64_t end);

}  // namespace tensorflow_ipu::core
