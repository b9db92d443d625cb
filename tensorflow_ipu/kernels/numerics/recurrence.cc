#include "tensorflow_ipu/kernels/numerics/recurrence.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "tensorflow_ipu/kernels/numerics/processor.h"

namespace tensorflow_ipu::core {

namespace {

#pragma GCC diagnostic ignored "-Wpsabi"  // No vector is passed to another compilation unit.

namespace portable {
constexpr int kWidth = 4, kRows = 2;
#include "tensorflow_ipu/kernels/numerics/recurrence_steps.h"
}  // namespace portable

#if IPU_X86
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
constexpr int kWidth = 8, kRows = 2;
#include "tensorflow_ipu/kernels/numerics/recurrence_steps.h"
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma")
namespace avx512 {
constexpr int kWidth = 16, kRows = 4;
#include "tensorflow_ipu/kernels/numerics/recurrence_steps.h"
}  // namespace avx512
#pragma GCC pop_options
#endif

#if IPU_X86
const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0;
const bool has_avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
#define IPU_BEST(function) (has_avx512 ? avx512::function : has_avx2 ? avx2::function : portable::function)
#else
#define IPU_BEST(function) portable::function
#endif

}  // namespace

PackedKernel Pack(const Recurrence& r) {
  return {IPU_BEST(Packed)(r, 0, r.units, 4 * r.units - r.columns()), IPU_BEST(Packed)(r, r.units, r.features, 0)};
}

void RunSteps(const Recurrence& recurrence, const PackedKernel& kernel, int64_t begin, int64_t end) {
  (recurrence.of_inputs == nullptr ? IPU_BEST(Forward) : IPU_BEST(Backward))(recurrence, kernel, begin, end);
}

void AddUpKernel(const Recurrence& recurrence, int64_t rows, int64_t begin, int64_t end) {
  IPU_BEST(OfKernel)(recurrence, rows, begin, end);
}

}  // namespace tensorflow_ipu::core
