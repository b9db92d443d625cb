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

// Tensors are row-major: a row is an element of the batch. The gates of an LSTM are input, forget, candidate and output;
// those of a GRU, which resets after the product, are update, reset and candidate.
struct Recurrence {
  int64_t steps, units;
  bool lstm;
  const float* kernel;  // [units, gates * units]
  const float* state;   // [rows, units], before the first step.
  const float* cell;    // Likewise, of an LSTM.
  const bool* mask;     // [rows, steps], or null; a step where it is false changes nothing.

  int64_t gates() const { return lstm ? 4 : 3; }
  // The gates, and the cell (LSTM) or the recurrent product of the candidate (GRU).
  int64_t saved_size() const { return (gates() + 1) * units; }
};

struct ForwardRecurrence : Recurrence {
  const float* inputs;  // [rows, steps, gates * units], the products of the inputs, with their bias.
  const float* bias;    // [gates * units] of the recurrent products of a GRU.
  float* states;        // [rows, steps, units]
  float* saved;         // [rows, steps, saved_size], for the gradient.
  float* last_cell;     // [rows, units] of an LSTM.
};

struct BackwardRecurrence : Recurrence {
  const float* states;
  const float* saved;
  const float* upstream;       // [rows, steps, units], of `states`.
  const float* last_upstream;  // [rows, units], of `last_cell`.
  float* inputs;               // [rows, steps, gates * units]: gradients of what has this name above, as are all below.
  float* products;             // Likewise, of the recurrent products; of an LSTM the same memory.
  float* of_state;             // [rows, units]
  float* of_cell;              // [rows, units] of an LSTM.
};

// Returns the kernel as the functions below read it.
Lines ForwardKernel(const Recurrence& recurrence);
Lines BackwardKernel(const Recurrence& recurrence);

// Computes all steps of the rows from `begin` to `end`.
void RunForward(const ForwardRecurrence& recurrence, const Lines& kernel, int64_t begin, int64_t end);
void RunBackward(const BackwardRecurrence& recurrence, const Lines& kernel, int64_t begin, int64_t end);

}  // namespace tensorflow_ipu::core
