// The functions of `recurrence.h` for vectors of `kWidth` floats and tiles of `kRows` rows. It is included once for each
// kind of processor, in a namespace that defines both: GCC splits vectors when it reads a function, by the instructions
// that are allowed there, so a template that is inlined elsewhere would be too late.

typedef float Vector __attribute__((vector_size(kWidth * sizeof(float))));
typedef int32_t Integers __attribute__((vector_size(kWidth * sizeof(int32_t))));

// Vectors of a row of `kernel` in a panel.
constexpr int kColumns = 4;

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

// e^x = 2^n * e^r, with a polynomial for the small r.
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

// The products of `depth` elements of each row of a tile with a panel of the kernel.
template <int kCount>
inline void Multiply(const float* const* left, const float* panel, int64_t depth, Vector (*products)[kColumns]) {
  Vector sums[kRows][kCount] = {};
  for (int64_t k = 0; k < depth; ++k, panel += kCount * kWidth) {
    Vector right[kCount];
#pragma GCC unroll 4
    for (int column = 0; column < kCount; ++column) right[column] = Load(panel + column * kWidth, kWidth);
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int column = 0; column < kCount; ++column) sums[row][column] += left[row][k] * right[column];
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int column = 0; column < kCount; ++column) products[row][column] = sums[row][column];
  }
}

inline int64_t Panels(int64_t columns, int64_t width) { return (columns + width - 1) / width; }

// Panels of `kWidth` units, with the columns of all their gates.
Lines ForwardKernel(const Recurrence& r) {
  const int64_t gates = r.gates(), panel = r.units * gates * kWidth, panels = Panels(r.units, kWidth);
  Lines lines(static_cast<std::size_t>(Panels(panels * panel, 16)));
  float* to = lines.data()->floats;
  for (int64_t unit = 0; unit < r.units; unit += kWidth) {
    for (int64_t row = 0; row < r.units * gates; ++row, to += kWidth) {
      Store(Load(r.kernel + row * r.units + unit, r.units - unit), to, kWidth);
    }
  }
  return lines;
}

// Panels of `kColumns` vectors of units, with a row for each gate of each unit.
Lines BackwardKernel(const Recurrence& r) {
  constexpr int64_t kPanel = kColumns * kWidth;
  const int64_t depth = r.gates() * r.units, panels = Panels(r.units, kPanel);
  Lines lines(static_cast<std::size_t>(Panels(panels * depth * kPanel, 16)));
  float* const to = lines.data()->floats;
  for (int64_t unit = 0; unit < r.units; ++unit) {
    float* const column = to + unit / kPanel * depth * kPanel + unit % kPanel;
    for (int64_t k = 0; k < depth; ++k) column[k * kPanel] = r.kernel[unit * depth + k];
  }
  return lines;
}

// A step of a row: `kWidth` units at most, from `unit` on.
inline void StepForward(const ForwardRecurrence& r, int64_t row, int64_t step, int64_t unit, const float* previous,
                        const Vector* products) {
  const int64_t count = r.units - unit, at = row * r.steps + step;
  const float* const inputs = r.inputs + at * r.gates() * r.units + unit;
  float* const saved = r.saved + at * r.saved_size() + unit;
  const Vector before = Load(previous + unit, count);
  Vector gates[4], state, cell_before = {};
  for (int64_t gate = 0; gate < r.gates(); ++gate) gates[gate] = Load(inputs + gate * r.units, count);
  if (r.lstm) {
    cell_before = Load(step == 0 ? r.cell + row * r.units + unit : saved - r.saved_size() + 4 * r.units, count);
    for (const int gate : {0, 1, 3}) gates[gate] = Sigmoid(gates[gate] + products[gate]);
    gates[2] = Tanh(gates[2] + products[2]);
  } else {
    const float* const bias = r.bias + unit;
    for (const int gate : {0, 1}) {
      gates[gate] = Sigmoid(gates[gate] + products[gate] + Load(bias + gate * r.units, count));
    }
    gates[3] = products[2] + Load(bias + 2 * r.units, count);
    gates[2] = Tanh(gates[2] + gates[1] * gates[3]);
  }
  const bool taken = r.mask == nullptr || r.mask[at];
  Vector cell = r.lstm ? gates[1] * cell_before + gates[0] * gates[2] : gates[3];
  state = r.lstm ? gates[3] * Tanh(cell) : gates[0] * before + (1.0f - gates[0]) * gates[2];
  if (!taken) {
    state = before;
    if (r.lstm) cell = cell_before;
  }
  Store(state, r.states + at * r.units + unit, count);
  for (int64_t gate = 0; gate < r.gates(); ++gate) Store(gates[gate], saved + gate * r.units, count);
  Store(cell, saved + r.gates() * r.units, count);
  if (r.lstm && step + 1 == r.steps) Store(cell, r.last_cell + row * r.units + unit, count);
}

// Calls `function(first row, their number, the rows of a tile)` for tiles of rows; a row fills up the last tile.
template <typename RowAt, typename Function>
inline void ForTiles(int64_t begin, int64_t end, RowAt row_at, Function function) {
  for (int64_t first = begin; first < end; first += kRows) {
    const float* rows[kRows];
    const int64_t count = std::min<int64_t>(kRows, end - first);
    for (int64_t i = 0; i < kRows; ++i) rows[i] = row_at(first + std::min(i, count - 1));
    function(first, count, rows);
  }
}

void RunForward(const ForwardRecurrence& r, const Lines& kernel, int64_t begin, int64_t end) {
  for (int64_t step = 0; step < r.steps; ++step) {
    const auto previous = [&](int64_t row) {
      return step == 0 ? r.state + row * r.units : r.states + (row * r.steps + step - 1) * r.units;
    };
    const float* panel = kernel.data()->floats;
    for (int64_t unit = 0; unit < r.units; unit += kWidth, panel += r.units * r.gates() * kWidth) {
      ForTiles(begin, end, previous, [&](int64_t first, int64_t count, const float* const* rows) {
        Vector products[kRows][kColumns];
        r.lstm ? Multiply<4>(rows, panel, r.units, products) : Multiply<3>(rows, panel, r.units, products);
        for (int64_t i = 0; i < count; ++i) StepForward(r, first + i, step, unit, rows[i], products[i]);
      });
    }
  }
}

// The gradients of a row's gates in a step. Adds to the gradient of the state before it what does not come from the
// recurrent products.
inline void StepBackward(const BackwardRecurrence& r, int64_t row, int64_t step) {
  const int64_t at = row * r.steps + step, size = r.gates() * r.units;
  const float* const before = step == 0 ? r.state + row * r.units : r.states + (at - 1) * r.units;
  const bool taken = r.mask == nullptr || r.mask[at];
  for (int64_t unit = 0; unit < r.units; unit += kWidth) {
    const int64_t count = r.units - unit;
    const float* const saved = r.saved + at * r.saved_size() + unit;
    float* const of_state = r.of_state + row * r.units + unit;
    const Vector upstream = Load(of_state, count) + Load(r.upstream + at * r.units + unit, count);
    Vector gates[5], gradients[4] = {}, passed = upstream, of_product = {};
    for (int64_t gate = 0; gate <= r.gates(); ++gate) gates[gate] = Load(saved + gate * r.units, count);
    if (taken && r.lstm) {
      float* const of_cell = r.of_cell + row * r.units + unit;
      const float* const cell = step == 0 ? r.cell + row * r.units + unit : saved - r.saved_size() + 4 * r.units;
      const Vector tanh = Tanh(gates[4]);
      const Vector change = Load(of_cell, count) + upstream * gates[3] * (1.0f - tanh * tanh);
      gradients[0] = change * gates[2] * gates[0] * (1.0f - gates[0]);
      gradients[1] = change * Load(cell, count) * gates[1] * (1.0f - gates[1]);
      gradients[2] = change * gates[0] * (1.0f - gates[2] * gates[2]);
      gradients[3] = upstream * tanh * gates[3] * (1.0f - gates[3]);
      passed = Vector{};
      Store(change * gates[1], of_cell, count);
    } else if (taken) {
      gradients[0] = upstream * (Load(before + unit, count) - gates[2]) * gates[0] * (1.0f - gates[0]);
      gradients[2] = upstream * (1.0f - gates[0]) * (1.0f - gates[2] * gates[2]);
      gradients[1] = gradients[2] * gates[3] * gates[1] * (1.0f - gates[1]);
      passed = upstream * gates[0];
      of_product = gradients[2] * gates[1];
    }
    Store(passed, of_state, count);
    for (int64_t gate = 0; gate < r.gates(); ++gate) {
      Store(gradients[gate], r.inputs + at * size + gate * r.units + unit, count);
      if (!r.lstm) {
        Store(gate == 2 ? of_product : gradients[gate], r.products + at * size + gate * r.units + unit, count);
      }
    }
  }
}

void RunBackward(const BackwardRecurrence& r, const Lines& kernel, int64_t begin, int64_t end) {
  const int64_t depth = r.gates() * r.units;
  std::fill(r.of_state + begin * r.units, r.of_state + end * r.units, 0.0f);
  if (r.lstm) std::copy(r.last_upstream + begin * r.units, r.last_upstream + end * r.units, r.of_cell + begin * r.units);
  for (int64_t step = r.steps - 1; step >= 0; --step) {
    for (int64_t row = begin; row < end; ++row) StepBackward(r, row, step);
    const auto products_of = [&](int64_t row) { return r.products + (row * r.steps + step) * depth; };
    const float* panel = kernel.data()->floats;
    for (int64_t unit = 0; unit < r.units; unit += kColumns * kWidth, panel += depth * kColumns * kWidth) {
      ForTiles(begin, end, products_of, [&](int64_t first, int64_t count, const float* const* rows) {
        Vector products[kRows][kColumns];
        Multiply<kColumns>(rows, panel, depth, products);
        for (int64_t i = 0; i < count; ++i) {
          for (int64_t column = 0; column < kColumns && unit + column * kWidth < r.units; ++column) {
            float* const to = r.of_state + (first + i) * r.units + unit + column * kWidth;
            const int64_t size = r.units - unit - column * kWidth;
            Store(Load(to, size) + products[i][column], to, size);
          }
        }
      });
    }
  }
}
