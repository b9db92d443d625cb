// The functions of `recurrence.h` for vectors of `kWidth` floats and tiles of `kRows` rows. The file is included once
// for each kind of processor, in a namespace that defines both constants. Templates would not work: GCC splits vectors
// when it parses a function, according to the instructions that are enabled at that point.

typedef float Vector __attribute__((vector_size(kWidth * sizeof(float))));
typedef int32_t Integers __attribute__((vector_size(kWidth * sizeof(int32_t))));

// kVectors is the number of vectors in a panel's row. About kTogether rows and steps are computed together, so that
// they stay in the cache.
constexpr int kVectors = 4, kPanel = kVectors * kWidth, kTogether = 128;

inline Vector Load(const float* from, int64_t count) {
  Vector loaded = {};
  if (count >= kWidth) {
    std::memcpy(&loaded, from, sizeof(Vector));
  } else {
    std::memcpy(&loaded, from, static_cast<std::size_t>(count) * sizeof(float));
  }
  return loaded;
}

inline void Store(const Vector& stored, float* to, int64_t count) {
  if (count >= kWidth) {
    std::memcpy(to, &stored, sizeof(Vector));
  } else {
    std::memcpy(to, &stored, static_cast<std::size_t>(count) * sizeof(float));
  }
}

// Computes e^x = 2^n * e^r, with a polynomial for the small r.
inline Vector Exp(Vector x) {
  constexpr float kLargest = 88.0f, kSmallest = -87.0f, kRounding = 12582912.0f;  // 1.5 * 2^23
  constexpr float kPerBit = 1.44269504f, kBit = 0.693145752f, kRestOfBit = 1.42860677e-6f;
  x = x > kLargest ? kLargest - Vector{} : x;
  x = x < kSmallest ? kSmallest - Vector{} : x;
  const Vector n = x * kPerBit + kRounding - kRounding;
  const Vector r = x - n * kBit - n * kRestOfBit;
  Vector sum = r * 0.000198909809f + 0.00139336416f;
  sum = sum * r + 0.00833331048f;
  sum = sum * r + 0.0416664667f;
  sum = sum * r + 0.166666672f;
  sum = sum * r + 0.5f;
  sum = sum * r * r + r + 1.0f;
  const Integers power = (__builtin_convertvector(n, Integers) + 127) << 23;
  return sum * reinterpret_cast<Vector>(power);
}

inline Vector Sigmoid(Vector x) { return 1.0f / (1.0f + Exp(-x)); }

inline Vector Tanh(Vector x) {
  constexpr float kSmall = 0.625f;
  const Vector magnitude = x < 0.0f ? -x : x;
  const Vector large = 1.0f - 2.0f / (Exp(2.0f * magnitude) + 1.0f);
  const Vector square = x * x;
  Vector sum = square * 0.00229274482f - 0.00834394526f;
  sum = sum * square + 0.0217689183f;
  sum = sum * square - 0.0539592579f;
  sum = sum * square + 0.133333042f;
  sum = sum * square - 0.333333343f;
  return magnitude < kSmall ? x + x * square * sum : x < 0.0f ? -large : large;
}

// Returns `rows` rows of the kernel from `first` on, and its columns from `column` on, in panels. In the backward pass,
// rows and columns are swapped.
Lines Packed(const Recurrence& r, int64_t first, int64_t rows, int64_t column) {
  const bool backward = r.of_inputs != nullptr;
  const int64_t depth = backward ? r.columns() : rows, panels = ((backward ? rows : r.columns()) + kPanel - 1) / kPanel;
  Lines lines(static_cast<std::size_t>(panels * depth * kPanel + 15) / 16);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < r.columns(); ++k) {
      const int64_t down = backward ? k : row, across = backward ? row : k;
      float* const line = lines.data()->floats + (across / kPanel * depth + down) * kPanel;
      line[across % kPanel] = r.kernel[(first + row) * 4 * r.units + column + k];
    }
  }
  return lines;
}

// Multiplies two matrices. Row i of the left one begins at `row_at(i)`, and its elements have the distance `stride`.
// Rows of the right one have the distance `right_row`, and its panels the distance `right_panel`. Stores row i of the
// product at `to_row(i)`, or adds it if `kAdd`.
template <bool kAdd, typename RowAt, typename ToRow>
inline void Multiply(int64_t rows, int64_t depth, int64_t columns, RowAt row_at, int64_t stride, const float* right,
                     int64_t right_row, int64_t right_panel, ToRow to_row) {
  for (int64_t column = 0; column < columns; column += kPanel) {
    for (int64_t first = 0; first < rows; first += kRows) {
      const int64_t count = std::min<int64_t>(kRows, rows - first);
      const float* left[kRows];  // The last row is repeated to fill the last tile.
      for (int64_t i = 0; i < kRows; ++i) left[i] = row_at(first + std::min(i, count - 1));
      Vector sums[kRows][kVectors] = {};
      const float* factors = right + column / kPanel * right_panel;
      for (int64_t k = 0; k < depth; ++k, factors += right_row) {
#pragma GCC unroll 4
        for (int vector = 0; vector < kVectors; ++vector) {
          const Vector factor = Load(factors + vector * kWidth, kWidth);
#pragma GCC unroll 4
          for (int row = 0; row < kRows; ++row) sums[row][vector] += left[row][k * stride] * factor;
        }
      }
      for (int64_t i = 0; i < count; ++i) {
        float* const to = to_row(first + i);
        for (int64_t vector = 0, index = column; vector < kVectors && index < columns; ++vector, index += kWidth) {
          const Vector before = kAdd ? Load(to + index, columns - index) : Vector{};
          Store(before + sums[i][vector], to + index, columns - index);
        }
      }
    }
  }
}

inline const float* StateBefore(const Recurrence& r, int64_t row, int64_t step) {
  return step == 0 ? r.state + row * r.units : r.states + (row * r.steps + step - 1) * r.units;
}

// Computes a step from its products without bias, which are stored in `saved`.
inline void StepForward(const Recurrence& r, int64_t row, int64_t step) {
  const int64_t at = row * r.steps + step;
  const bool taken = r.mask == nullptr || r.mask[at];
  for (int64_t unit = 0; unit < r.units; unit += kWidth) {
    const int64_t count = r.units - unit;
    float* const saved = r.saved + at * r.saved_size() + unit;
    const float* const bias = r.kernel + (r.depth() - 1) * 4 * r.units + unit;
    const Vector before = Load(StateBefore(r, row, step) + unit, count);
    Vector gates[4], state;
#pragma GCC unroll 4
    for (int64_t gate = 0; gate < 4; ++gate) {
      gates[gate] = Load(saved + gate * r.units, count) + Load(bias + gate * r.units, count);
    }
    gates[1] = Sigmoid(gates[1]);
    if (r.lstm) {
      gates[0] = Sigmoid(gates[0]);
      gates[2] = Tanh(gates[2]);
      gates[3] = Sigmoid(gates[3]);
      const Vector cell = Load(step == 0 ? r.cell + row * r.units + unit : saved - r.units, count);
      const Vector next = taken ? gates[1] * cell + gates[0] * gates[2] : cell;
      state = gates[3] * Tanh(next);
      Store(next, saved + 4 * r.units, count);
      if (step + 1 == r.steps) Store(next, r.last_cell + row * r.units + unit, count);
    } else {
      gates[2] = Sigmoid(gates[2]);
      gates[0] = Tanh(gates[0] + gates[2] * gates[3]);
      state = gates[1] * before + (1.0f - gates[1]) * gates[0];
    }
#pragma GCC unroll 4
    for (int64_t gate = 0; gate < 4; ++gate) Store(gates[gate], saved + gate * r.units, count);
    Store(taken ? state : before, r.states + at * r.units + unit, count);
  }
}

void Forward(const Recurrence& r, const PackedKernel& kernel, int64_t begin, int64_t end) {
  const int64_t rows = end - begin, together = std::clamp<int64_t>(kTogether / rows, 1, r.steps), n = r.columns();
  for (int64_t first = 0; first < r.steps; first += together) {
    const int64_t last = std::min(first + together, r.steps);
    const auto place = [&](int64_t i) { return (begin + i % rows) * r.steps + first + i / rows; };
    const auto inputs = [&](int64_t i) { return r.inputs + place(i) * r.features; };
    const auto saved = [&](int64_t i) { return r.saved + place(i) * r.saved_size(); };
    Multiply<false>((last - first) * rows, r.features, n, inputs, 1, kernel.of_inputs.data()->floats, kPanel,
                    r.features * kPanel, saved);
    for (int64_t step = first; step < last; ++step) {
      const auto state = [&](int64_t i) { return StateBefore(r, begin + i, step); };
      const auto products = [&](int64_t i) { return saved((step - first) * rows + i) + 4 * r.units - n; };
      for (int64_t i = 0; i < rows; ++i) std::fill_n(saved((step - first) * rows + i) + n, 4 * r.units - n, 0.0f);
      Multiply<true>(rows, r.units, n, state, 1, kernel.of_state.data()->floats, kPanel, r.units * kPanel, products);
      for (int64_t row = begin; row < end; ++row) StepForward(r, row, step);
    }
  }
}

// Computes the gradients of the gates. Stores the state's gradient in `of_state`, except for the part that the product
// with the kernel adds later.
inline void StepBackward(const Recurrence& r, int64_t row, int64_t step, float* of_gates) {
  const int64_t at = row * r.steps + step;
  const bool taken = r.mask == nullptr || r.mask[at];
  for (int64_t unit = 0; unit < r.units; unit += kWidth) {
    const int64_t count = r.units - unit;
    const float* const saved = r.saved + at * r.saved_size() + unit;
    float* const of_state = r.of_state + row * r.units + unit;
    const Vector upstream = Load(of_state, count) + Load(r.upstream + at * r.units + unit, count);
    Vector gates[4], gradients[4] = {}, passed = upstream;
#pragma GCC unroll 4
    for (int64_t gate = 0; gate < 4; ++gate) gates[gate] = Load(saved + gate * r.units, count);
    if (taken && r.lstm) {
      float* const of_cell = r.of_cell + row * r.units + unit;
      const float* const cell = step == 0 ? r.cell + row * r.units + unit : saved - r.units;
      const Vector tanh = Tanh(Load(saved + 4 * r.units, count));
      const Vector change = Load(of_cell, count) + upstream * gates[3] * (1.0f - tanh * tanh);
      gradients[0] = change * gates[2] * gates[0] * (1.0f - gates[0]);
      gradients[1] = change * Load(cell, count) * gates[1] * (1.0f - gates[1]);
      gradients[2] = change * gates[0] * (1.0f - gates[2] * gates[2]);
      gradients[3] = upstream * tanh * gates[3] * (1.0f - gates[3]);
      passed = Vector{};
      Store(change * gates[1], of_cell, count);
    } else if (taken) {
      const Vector before = Load(StateBefore(r, row, step) + unit, count);
      gradients[1] = upstream * (before - gates[0]) * gates[1] * (1.0f - gates[1]);
      gradients[0] = upstream * (1.0f - gates[1]) * (1.0f - gates[0] * gates[0]);
      gradients[2] = gradients[0] * gates[3] * gates[2] * (1.0f - gates[2]);
      gradients[3] = gradients[0] * gates[2];
      passed = upstream * gates[1];
    }
    Store(passed, of_state, count);
#pragma GCC unroll 4
    for (int64_t gate = 0; gate < 4; ++gate) Store(gradients[gate], of_gates + gate * r.units + unit, count);
  }
}

void Backward(const Recurrence& r, const PackedKernel& kernel, int64_t begin, int64_t end) {
  const int64_t rows = end - begin, together = std::clamp<int64_t>(kTogether / rows, 1, r.steps), n = r.columns();
  const auto gates = [&](int64_t place) { return r.of_gates + place * r.pitch(); };
  std::fill(r.of_state + begin * r.units, r.of_state + end * r.units, 0.0f);
  if (r.lstm)
    std::copy(r.last_upstream + begin * r.units, r.last_upstream + end * r.units, r.of_cell + begin * r.units);
  for (int64_t last = r.steps; last > 0; last -= together) {
    const int64_t first = std::max<int64_t>(last - together, 0);
    for (int64_t step = last - 1; step >= first; --step) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t place = row * r.steps + step;
        float* to = std::copy_n(StateBefore(r, row, step), r.units, r.operands + place * r.depth());
        to = std::copy_n(r.inputs + place * r.features, r.features, to);
        *to = 1.0f;
        StepBackward(r, row, step, gates(place));
      }
      const auto of_gates = [&](int64_t i) { return gates((begin + i) * r.steps + step) + 4 * r.units - n; };
      const auto state = [&](int64_t i) { return r.of_state + (begin + i) * r.units; };
      Multiply<true>(rows, n, r.units, of_gates, 1, kernel.of_state.data()->floats, kPanel, n * kPanel, state);
    }
    const auto place = [&](int64_t i) { return (begin + i % rows) * r.steps + first + i / rows; };
    const auto of_gates = [&](int64_t i) { return gates(place(i)); };
    const auto inputs = [&](int64_t i) { return r.of_inputs + place(i) * r.features; };
    Multiply<false>((last - first) * rows, n, r.features, of_gates, 1, kernel.of_inputs.data()->floats, kPanel,
                    n * kPanel, inputs);
  }
}

void OfKernel(const Recurrence& r, int64_t rows, int64_t begin, int64_t end) {
  const int64_t wide = 4 * r.units, all = rows * r.steps;
  std::fill(r.of_kernel + begin * wide, r.of_kernel + end * wide, 0.0f);
  for (int64_t first = 0; first < all; first += kTogether) {
    const auto operands = [&](int64_t k) { return r.operands + first * r.depth() + begin + k; };
    const auto to = [&](int64_t k) { return r.of_kernel + (begin + k) * wide; };
    Multiply<true>(end - begin, std::min<int64_t>(kTogether, all - first), wide, operands, r.depth(),
                   r.of_gates + first * r.pitch(), r.pitch(), kPanel, to);
  }
  // The parts of the kernel that a GRU does not use have no gradient.
  for (int64_t row = begin; row < std::min(end, r.depth() - 1); ++row) {
    std::fill_n(r.of_kernel + row * wide + (row < r.units ? 0 : r.columns()), wide - r.columns(), 0.0f);
  }
}
