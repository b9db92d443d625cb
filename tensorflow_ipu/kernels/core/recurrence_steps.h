// The functions of `recurrence.h` for vectors of `kWidth` floats and tiles of `kRows` rows. It is included once for
// each kind of processor, in a namespace that defines both: GCC splits vectors when it reads a function, by the
// instructions that are allowed there, so a template that is inlined elsewhere would be too late.

typedef float Vector __attribute__((vector_size(kWidth * sizeof(float))));
typedef int32_t Integers __attribute__((vector_size(kWidth * sizeof(int32_t))));

// The vectors of a row of a panel, backward.
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

// Panels of the kernel. Forward, one has the gates of `kWidth` units; backward, `kColumns * kWidth` units by all gates.
Lines Packed(const Recurrence& r) {
  const bool backward = r.of_inputs != nullptr;
  const int64_t wide = r.gates() * r.units, depth = backward ? wide : r.units;
  const int64_t columns = backward ? kColumns : r.gates(), panel = backward ? kColumns * kWidth : kWidth;
  Lines lines(static_cast<std::size_t>((r.units + panel - 1) / panel * depth * columns * kWidth / 16 + 1));
  float* to = lines.data()->floats;
  for (int64_t first = 0; first < r.units; first += panel) {
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t column = 0; column < columns; ++column) {
        for (int64_t unit = first + (backward ? column * kWidth : 0), end = unit + kWidth; unit < end; ++unit, ++to) {
          if (unit < r.units) *to = backward ? r.kernel[unit * wide + k] : r.kernel[k * wide + column * r.units + unit];
        }
      }
    }
  }
  return lines;
}

// Multiplies rows of `depth` elements by the kernel, and passes each product to `take(row, unit, product)`. A tile has
// kRows rows; its last one fills up the last tile.
template <int kCount, typename RowAt, typename Take>
inline void ForProducts(const Lines& kernel, int64_t depth, int64_t units, int64_t panel_units, int64_t begin,
                        int64_t end, RowAt row_at, Take take) {
  const float* panel = kernel.data()->floats;
  for (int64_t unit = 0; unit < units; unit += panel_units, panel += depth * kCount * kWidth) {
    for (int64_t first = begin; first < end; first += kRows) {
      const int64_t count = std::min<int64_t>(kRows, end - first);
      const float* rows[kRows];
      for (int64_t i = 0; i < kRows; ++i) rows[i] = row_at(first + std::min(i, count - 1));
      Vector sums[kRows][kCount] = {};
      const float* right = panel;
      for (int64_t k = 0; k < depth; ++k) {
#pragma GCC unroll 4
        for (int column = 0; column < kCount; ++column, right += kWidth) {
          const Vector factors = Load(right, kWidth);
#pragma GCC unroll 4
          for (int row = 0; row < kRows; ++row) sums[row][column] += rows[row][k] * factors;
        }
      }
      for (int64_t i = 0; i < count; ++i) take(first + i, unit, sums[i]);
    }
  }
}

// Of up to `kWidth` units from `unit` on.
inline void StepForward(const Recurrence& r, int64_t row, int64_t step, int64_t unit, const float* previous,
                        const Vector* products) {
  const int64_t count = r.units - unit, at = row * r.steps + step;
  const float* const inputs = r.inputs + at * r.gates() * r.units + unit;
  float* const saved = r.saved + at * r.saved_size() + unit;
  const Vector before = Load(previous, count);
  Vector gates[5], state, cell = {};
  for (int64_t gate = 0; gate < r.gates(); ++gate) gates[gate] = Load(inputs + gate * r.units, count);
  if (r.lstm) {
    cell = Load(step == 0 ? r.cell + row * r.units + unit : saved - r.units, count);
    for (const int gate : {0, 1, 3}) gates[gate] = Sigmoid(gates[gate] + products[gate]);
    gates[2] = Tanh(gates[2] + products[2]);
    gates[4] = gates[1] * cell + gates[0] * gates[2];
    state = gates[3] * Tanh(gates[4]);
  } else {
    const float* const bias = r.bias + unit;
    for (const int gate : {0, 1}) {
      gates[gate] = Sigmoid(gates[gate] + products[gate] + Load(bias + gate * r.units, count));
    }
    gates[3] = products[2] + Load(bias + 2 * r.units, count);
    gates[2] = Tanh(gates[2] + gates[1] * gates[3]);
    state = gates[0] * before + (1.0f - gates[0]) * gates[2];
  }
  if (r.mask != nullptr && !r.mask[at]) {
    state = before;
    if (r.lstm) gates[4] = cell;
  }
  Store(state, r.states + at * r.units + unit, count);
  for (int64_t gate = 0; gate <= r.gates(); ++gate) Store(gates[gate], saved + gate * r.units, count);
  if (r.lstm && step + 1 == r.steps) Store(gates[4], r.last_cell + row * r.units + unit, count);
}

void Forward(const Recurrence& r, const Lines& kernel, int64_t begin, int64_t end) {
  for (int64_t step = 0; step < r.steps; ++step) {
    const auto previous = [&](int64_t row) {
      return step == 0 ? r.state + row * r.units : r.states + (row * r.steps + step - 1) * r.units;
    };
    const auto take = [&](int64_t row, int64_t unit, const Vector* products) {
      StepForward(r, row, step, unit, previous(row) + unit, products);
    };
    if (r.lstm) ForProducts<4>(kernel, r.units, r.units, kWidth, begin, end, previous, take);
    if (!r.lstm) ForProducts<3>(kernel, r.units, r.units, kWidth, begin, end, previous, take);
  }
}

// The gradients of the gates. Leaves in `of_state` what does not come by the recurrent products.
inline void StepBackward(const Recurrence& r, int64_t row, int64_t step) {
  const int64_t at = row * r.steps + step, wide = r.gates() * r.units;
  for (int64_t unit = 0; unit < r.units; unit += kWidth) {
    const int64_t count = r.units - unit;
    const float* const saved = r.saved + at * r.saved_size() + unit;
    float* const of_state = r.of_state + row * r.units + unit;
    const Vector upstream = Load(of_state, count) + Load(r.upstream + at * r.units + unit, count);
    Vector gates[5], gradients[4] = {}, passed = upstream, of_product = {};
    for (int64_t gate = 0; gate <= r.gates(); ++gate) gates[gate] = Load(saved + gate * r.units, count);
    const bool taken = r.mask == nullptr || r.mask[at];
    if (taken && r.lstm) {
      float* const of_cell = r.of_cell + row * r.units + unit;
      const float* const cell = step == 0 ? r.cell + row * r.units + unit : saved - r.units;
      const Vector tanh = Tanh(gates[4]);
      const Vector change = Load(of_cell, count) + upstream * gates[3] * (1.0f - tanh * tanh);
      gradients[0] = change * gates[2] * gates[0] * (1.0f - gates[0]);
      gradients[1] = change * Load(cell, count) * gates[1] * (1.0f - gates[1]);
      gradients[2] = change * gates[0] * (1.0f - gates[2] * gates[2]);
      gradients[3] = upstream * tanh * gates[3] * (1.0f - gates[3]);
      passed = Vector{};
      Store(change * gates[1], of_cell, count);
    } else if (taken) {
      const float* const before = step == 0 ? r.state + row * r.units : r.states + (at - 1) * r.units;
      gradients[0] = upstream * (Load(before + unit, count) - gates[2]) * gates[0] * (1.0f - gates[0]);
      gradients[2] = upstream * (1.0f - gates[0]) * (1.0f - gates[2] * gates[2]);
      gradients[1] = gradients[2] * gates[3] * gates[1] * (1.0f - gates[1]);
      passed = upstream * gates[0];
      of_product = gradients[2] * gates[1];
    }
    Store(passed, of_state, count);
    for (int64_t gate = 0; gate < r.gates(); ++gate) {
      const int64_t place = at * wide + gate * r.units + unit;
      Store(gradients[gate], r.of_inputs + place, count);
      if (!r.lstm) Store(gate == 2 ? of_product : gradients[gate], r.of_products + place, count);
    }
  }
}

void Backward(const Recurrence& r, const Lines& kernel, int64_t begin, int64_t end) {
  const int64_t wide = r.gates() * r.units;
  std::fill(r.of_state + begin * r.units, r.of_state + end * r.units, 0.0f);
  if (r.lstm)
    std::copy(r.last_upstream + begin * r.units, r.last_upstream + end * r.units, r.of_cell + begin * r.units);
  for (int64_t step = r.steps - 1; step >= 0; --step) {
    for (int64_t row = begin; row < end; ++row) StepBackward(r, row, step);
    const auto products_of = [&](int64_t row) { return r.of_products + (row * r.steps + step) * wide; };
    const auto take = [&](int64_t row, int64_t unit, const Vector* products) {
      for (int column = 0; column < kColumns && unit < r.units; ++column, unit += kWidth) {
        float* const to = r.of_state + row * r.units + unit;
        Store(Load(to, r.units - unit) + products[column], to, r.units - unit);
      }
    };
    ForProducts<kColumns>(kernel, wide, r.units, kColumns * kWidth, begin, end, products_of, take);
  }
}
