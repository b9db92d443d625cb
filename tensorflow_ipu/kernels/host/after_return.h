// What comes after an asynchronous kernel, and not in the midst of it.
#ifndef TENSORFLOW_IPU_KERNELS_HOST_AFTER_RETURN_H_
#define TENSORFLOW_IPU_KERNELS_HOST_AFTER_RETURN_H_

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

namespace tensorflow_ipu {

// Calls `end` when `compute(done)` has both called `done` and returned, on the thread of the later one. A kernel calls
// back from within: that of a compiled program while it holds the locks of the program's variables, which `end` may
// have to write, and `end` may be the rest of a whole program.
template <typename Compute>
void AfterReturn(Compute compute, std::function<void()> end) {
  const auto one_has = [left = std::make_shared<std::atomic<int>>(2), end = std::move(end)] {
    if (--*left == 0) end();
  };
  compute(one_has);
  one_has();
}

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_AFTER_RETURN_H_
