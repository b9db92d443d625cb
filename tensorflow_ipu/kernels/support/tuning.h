// Constants of the core that were chosen by measurement. "Without: 1.6" means that the benchmark took 1.6 times as long
// without the constant's mechanism. The machine had two cores with a shared third-level cache. The benchmarks were a
// feed of one layer (2.2 us a step), elements of 4 bytes (1.5 us), and four replicas of an MLP (290 us a step).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tensorflow_ipu::core {

// Feeds. `benchmarks/infeed-throughput` and `benchmarks/loop-overhead` measure these constants.

// How long a program of one replica spins for an element: about twice as long as sleeping and waking take. A longer
// wait halves the next limit, down to the shortest. Without: 1.6 for elements of 4 bytes to 64 KiB.
constexpr std::chrono::nanoseconds kLongestSpin{20000};
constexpr std::chrono::nanoseconds kShortestSpin{500};

// The rows that an infeed keeps ready beyond its depth, and the limit of their bytes. Waking the pump once should
// provide several elements. Without: 1.17 for an MLP.
constexpr int64_t kRowsAhead = 32;
constexpr std::size_t kBytesAhead = std::size_t{4} << 20;

// The limit of a growing queue. More elements would not stay in the processor's caches. Without: 1.06 for one layer.
constexpr std::size_t kGrownBytes = std::size_t{256} << 10;

// The size of a batch that a replica takes under the lock of the queue. Memory that pump and program share takes 0.1 us
// and more to move between cores. Without: 1.2 to 1.3 for elements of 4 and 64 KiB.
constexpr int64_t kBatchElements = 16;
constexpr std::size_t kBatchBytes = std::size_t{16} << 10;

// Elements up to this size are copied into memory of the queue, because releasing tensors of another core takes longer.
// Without: 1.0 on cores with a shared cache; the size was chosen for cores without.
constexpr std::size_t kCopiedBytes = 1024;

// Outfeeds. `benchmarks/outfeed-latency` and `benchmarks/loop-overhead` measure these constants.

// The largest allocation of an outfeed. Without, with one allocation per row: 1.8 for rows of 4 bytes.
constexpr std::size_t kMostBytes = std::size_t{1} << 20;

// The bytes between two checks of the available memory, which take 10 us, and the bytes that are left to other
// processes. Without: 1.07 for rows of 4 bytes.
constexpr std::size_t kUncheckedBytes = std::size_t{64} << 20;
constexpr std::size_t kSpareBytes = std::size_t{256} << 20;

// From this number of unread bytes on, a deleted queue returns its freed memory to the system. The C library would keep
// pieces of 1 MiB for later use.
constexpr std::size_t kReturnedBytes = std::size_t{64} << 20;

// Collectives. `benchmarks/collective-throughput` and `benchmarks/replica-scaling` measure these constants.

// From this size on, counted over all replicas, threads share a collective. One thread processes about as many bytes in
// the 10 us that waking another one takes. Without: 1.2 for 1 MiB a replica.
constexpr std::size_t kSharedBytes = std::size_t{1} << 20;

// The size of a piece, per replica. A piece of all replicas fits into a second-level cache, so that the output is still
// there when it is copied. Without: 1.25 for 1 MiB.
constexpr int64_t kPieceBytes = int64_t{32} << 10;

// If the waiting programs run for longer than this in total, they are worth another thread. Without other threads: 1.4
// for four replicas.
constexpr std::chrono::nanoseconds kWorthAThread{60000};

// How long the thread of a collective's last piece spins, so that another thread can share the callbacks. Without: 1.04
// for four replicas.
constexpr std::chrono::nanoseconds kAwaitSpinning{10000};

// How long an executor's thread spins at most for its next task; see TaskSpin. Without: 1.2 for four replicas.
constexpr std::chrono::nanoseconds kLongestTaskSpin{500000};

// Collectives that span workers. `benchmarks/host-collectives` measures these constants.

// The size of a chunk, and the number of chunks in flight.
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr int64_t kChunksInFlight = 4;

// From this size on, a chunk is reduced in halves by three or more workers: each worker reduces a part, and then all
// send each other the results. This takes twice the bytes and a second round trip, but the time does not depend on the
// number of workers.
constexpr std::size_t kHalvedBytes = std::size_t{64} << 10;

// The interval at which a worker that waits for others checks them.
constexpr std::chrono::milliseconds kPeerCheckInterval{500};

// The polling of the thread of MPI. After an event it polls for kMpiSpin without sleeping. Then each sleep lasts a
// sixteenth of the time since that event, up to kMpiSleep. So a message is delayed by at most that fraction, and an
// idle worker uses less than a hundredth of a core.
constexpr std::chrono::nanoseconds kMpiSpin{20000};
constexpr int64_t kMpiSleepShare = 16;
constexpr std::chrono::nanoseconds kMpiSleep{2000000};

// The shortest sleep on a host with more workers than processors. There, polling takes time from workers that compute.
constexpr std::chrono::nanoseconds kMpiCrowdedSleep{50000};

constexpr std::chrono::seconds kIdleThread{2};

}  // namespace tensorflow_ipu::core
