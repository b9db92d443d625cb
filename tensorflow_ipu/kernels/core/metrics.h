// Counters and samples of the whole process. Queues have their own: see Passed.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_METRICS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_METRICS_H_

#include <atomic>
#include <cstdint>

#include "tensorflow_ipu/kernels/core/counters.h"
#include "tensorflow_ipu/kernels/core/samples.h"

namespace tensorflow_ipu::core {

// Thread-safe; counters only grow.
struct Metrics {
  std::atomic<int64_t> collectives{0};
  std::atomic<int64_t> collective_bytes{0};
  std::atomic<int64_t> crossings{0};  // Collectives that span workers.
  std::atomic<int64_t> crossing_bytes{0};
  std::atomic<int64_t> executables_loaded{0};  // From disk.
  std::atomic<int64_t> executables_stored{0};
  std::atomic<int64_t> host_function_calls{0};
  std::atomic<int64_t> user_operation_calls{0};
  std::atomic<int64_t> variable_reads{0};  // By the host.
  std::atomic<int64_t> variable_read_bytes{0};
  std::atomic<int64_t> variable_writes{0};
  std::atomic<int64_t> variable_write_bytes{0};
  std::atomic<int64_t> failed_graph_runs{0};
  Counters host_kernel_calls;  // By type of op.
  Samples infeed_waits;
  Samples collective_waits;
  Samples graph_runs;  // Runs that Python does not see: those of sessions, and of programs in functions of the host.

  // Never destroyed: threads of programs may outlive static destructors.
  static Metrics& Global() {
    static auto* const metrics = new Metrics();
    return *metrics;
  }
};

inline void Count(std::atomic<int64_t>* counter, int64_t by = 1) { counter->fetch_add(by, std::memory_order_relaxed); }

// What has passed through a queue.
struct Passed {
  int64_t elements = 0;  // Taken from an infeed by programs, or enqueued in an outfeed by all replicas.
  int64_t bytes = 0;
  int64_t waits = 0;  // How often a replica had to wait for an element.
  int64_t wait_ns = 0;

  Passed& operator+=(const Passed& other) {
    elements += other.elements;
    bytes += other.bytes;
    waits += other.waits;
    wait_ns += other.wait_ns;
    return *this;
  }
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_METRICS_H_
