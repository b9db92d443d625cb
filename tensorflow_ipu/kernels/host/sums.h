// Sums of products for each feature, as batch normalization and its gradient need them.
#pragma once

#include <cstdint>

#include "tensorflow_ipu/kernels/host/threads.h"

namespace tensorflow_ipu {

// Two row-major matrices, and a value for each of their columns.
struct Factors {
  const float *left, *right, *center;
  int64_t rows, columns;
};

// Writes the sums over the rows of (left - center) * (right - center), one per column.
void SumProducts(const Factors& factors, float* sums, const HostThreads& threads);

}  // namespace tensorflow_ipu
