// What all waits in the core share: for how long they may last, whether Ctrl-C has ended them, and how a thread spins.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_WAITING_H_
#define TENSORFLOW_IPU_KERNELS_CORE_WAITING_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tensorflow_ipu::core {

// How long a program may wait for data, in nanoseconds; 0: as long as it takes.
inline std::atomic<int64_t> wait_limit_ns{0};

// Set from Ctrl-C until the interrupted run has ended: feeds refuse every call, so that no program goes on.
inline std::atomic<bool> interrupted{false};

// Whether Python's main thread is in a run, itself or by a thread that stands for it.
inline std::atomic<bool> main_thread_runs{false};

// Tells the processor that this thread spins.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// How often a spin looks at what it waits for before it looks at the clock, which takes longer.
constexpr int kTriesBetweenLooks = 16;

// Spins until `done` returns true, `limit` at the longest. Returns whether it did. A sleep and a wake cost some ten
// microseconds, which is more than a small element's whole way through a queue.
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

#endif  // TENSORFLOW_IPU_KERNELS_CORE_WAITING_H_
