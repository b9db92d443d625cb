// The settings and functions that all waits of the core share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tensorflow_ipu::core {

// The limit of each wait; 0: no limit.
inline std::atomic<int64_t> wait_limit_ns{0};

// Set from Ctrl-C until the interrupted run has ended. Feeds reject calls while it is set.
inline std::atomic<bool> interrupted{false};

// The number of the last interrupt.
inline std::atomic<int64_t> last_interrupt{0};

inline void Interrupt() {
  ++last_interrupt;
  interrupted = true;
}

// True while Python's main thread, or a thread in its place, runs a program.
inline std::atomic<bool> main_thread_runs{false};

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Reading the clock takes longer than a call of `done`.
constexpr int kTriesBetweenLooks = 16;

// Spins until `done` returns true. Returns false after `limit`. Sleeping and waking cost about 10 us, which is more
// than a small element needs to pass through a queue.
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
