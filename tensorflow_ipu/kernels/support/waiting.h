// What all waits of the core share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tensorflow_ipu::core {

// 0: no limit.
inline std::atomic<int64_t> wait_limit_ns{0};

// Set from Ctrl-C until the interrupted run has ended: feeds refuse calls.
inline std::atomic<bool> interrupted{false};

// The number of the last interrupt.
inline std::atomic<int64_t> last_interrupt{0};

inline void Interrupt() {
  ++last_interrupt;
  interrupted = true;
}

// Python's main thread, or a thread that stands for it.
inline std::atomic<bool> main_thread_runs{false};

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A look at the clock takes longer than a try.
constexpr int kTriesBetweenLooks = 16;

// Returns whether `done` returned true within `limit`. A sleep and a wake cost about 10 us, more than a small element's
// way through a queue.
template <typename Done>
bool SpinUntil(std::chrono::nanoseconds limit, Done done) {
  if (done()) return true;
  const auto end = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < kTriesBetweenLooks; ++i) {
      if (done()) return true;
      Pause();
    }
  }
  return done();
}

}  // namespace tensorflow_ipu::core
