// The continuation of an asynchronous kernel.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

namespace tensorflow_ipu {

// Calls `end` when `compute(done)` has both called `done` and returned, on the later thread. A compiled program calls
// back while it holds locks of variables that `end` may have to write.
template <typename Compute>
void AfterReturn(Compute compute, std::function<void()> end) {
  const auto one_has = [left = std::make_shared<std::atomic<int>>(2), end = std::move(end)] {
    if (--*left == 0) end();
  };
  compute(one_has);
  one_has();
}

}  // namespace tensorflow_ipu
