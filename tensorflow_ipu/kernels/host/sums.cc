#include "tensorflow_ipu/kernels/host/sums.h"

#include <algorithm>
#include <vector>

#include "tensorflow_ipu/kernels/numerics/processor.h"

namespace tensorflow_ipu {

namespace {

#if IPU_X86
#define IPU_BY_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define IPU_BY_PROCESSOR
#endif

typedef float Lanes __attribute__((vector_size(64), aligned(4), may_alias));  // `using` would not lower the alignment.

IPU_BY_PROCESSOR void AddProducts(const float* left, const float* right, const float* center, int64_t count,
                                  float* sums) {
  constexpr int64_t kLanes = sizeof(Lanes) / sizeof(float);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Lanes x = *reinterpret_cast<const Lanes*>(left + i), y = *reinterpret_cast<const Lanes*>(right + i);
    const Lanes shift = *reinterpret_cast<const Lanes*>(center + i);
    *reinterpret_cast<Lanes*>(sums + i) += (x - shift) * (y - shift);
  }
  for (; i < count; ++i) sums[i] += (left[i] - center[i]) * (right[i] - center[i]);
}

}  // namespace

void SumProducts(const Factors& factors, float* sums, const HostThreads& threads) {
  constexpr int64_t kWidth = 1024, kFewElements = 64 << 10;  // Few elements are not worth waking another thread.
  const int64_t columns = factors.columns, elements = factors.rows * columns;
  // Several rows are treated as one long row, which is added element by element.
  const int64_t width = std::max<int64_t>(kWidth / columns, 1) * columns, rows = (elements + width - 1) / width;
  const int64_t shards = elements < kFewElements ? 1 : threads.count();
  std::vector<float> centers, partial(static_cast<std::size_t>(shards * width), 0.0f);
  while (static_cast<int64_t>(centers.size()) < width) {
    centers.insert(centers.end(), factors.center, factors.center + columns);
  }
  threads.Divide(shards, [&](int64_t shard) {
    for (int64_t row = shard * rows / shards; row < (shard + 1) * rows / shards; ++row) {
      const int64_t offset = row * width;
      AddProducts(factors.left + offset, factors.right + offset, centers.data(), std::min(width, elements - offset),
                  partial.data() + shard * width);
    }
  });
  std::fill_n(sums, columns, 0.0f);
  for (int64_t i = 0; i < shards * width; ++i) sums[i % columns] += partial[static_cast<std::size_t>(i)];
}

}  // namespace tensorflow_ipu
