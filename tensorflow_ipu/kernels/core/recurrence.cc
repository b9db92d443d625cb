#include "tensorflow_ipu/kernels/core/recurrence.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "tensorflow_ipu/kernels/core/processor.h"

namespace tensorflow_ipu::core {

namespace {

#pragma GCC diagnostic ignored "-Wpsabi"  // No vector is passed to another unit.

namespace portable {
constexpr int kWidth = 4, kRows = 2;
#include "tensorflow_ipu/kernels/core/recurrence_steps.h"
}  // namespace portable

#if IPU_X86
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
constexpr int kWidth = 8, kRows = 2;
#include "tensorflow_ipu/kernels/core/recurrence_steps.h"
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma")
namespace avx512 {
constexpr int kWidth = 16, kRows = 4;
#include "tensorflow_ipu/kernels/core/recurrence_steps.h"
}  // namespace avx512
#pragma GCC pop_options
#endif

struct Steps {
  Lines (*forward_kernel)(const Recurrence&);
  Lines (*backward_kernel)(const Recurrence&);
  void (*forward)(const ForwardRecurrence&, const Lines&, int64_t, int64_t);
  void (*backward)(const BackwardRecurrence&, const Lines&, int64_t, int64_t);
};

#define IPU_STEPS(kind) {kind::ForwardKernel, kind::BackwardKernel, kind::RunForward, kind::RunBackward}

const Steps& Best() {
  static const Steps best = []() -> Steps {
#if IPU_X86
    if (__builtin_cpu_supports("avx512f")) return IPU_STEPS(avx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return IPU_STEPS(avx2);
#endif
    return IPU_STEPS(portable);
  }();
  return best;
}

}  // namespace

Lines ForwardKernel(const Recurrence& recurrence) { return Best().forward_kernel(recurrence); }

Lines BackwardKernel(const Recurrence& recurrence) { return Best().backward_kernel(recurrence); }

void RunForward(const ForwardRecurrence& recurrence, const Lines& kernel, int64_t begin, int64_t end) {
  Best().forward(recurrence, kernel, begin, end);
}

void RunBackward(const BackwardRecurrence& recurrence, const Lines& kernel, int64_t begin, int64_t end) {
  Best().backward(recurrence, kernel, begin, end);
}

}  // namespace tensorflow_ipu::core
