// The numbers of the core that were chosen by measurement. "Without" is how many times as long it took without one, on
// two cores that share a third-level cache: a feed of one layer in 2.2 us a step, elements of 4 bytes in 1.5 us, four
// replicas of an MLP in 290 us a step.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tensorflow_ipu::core {

// Feeds. `benchmarks/infeed-throughput` and `benchmarks/loop-overhead` measure them.

// How long a program of one replica spins for an element: about twice as long as a sleep and a wake take. A longer wait
// halves the next limit, down to the least. Without: 1.6 for elements of 4 bytes to 64 KiB.
constexpr std::chrono::nanoseconds kLongestSpin{20000};
constexpr std::chrono::nanoseconds kShortestSpin{500};

// What an infeed keeps ready beyond its depth: rows, and bytes in all. One wake of the pump should serve several
// elements. Without: 1.17 for an MLP.
constexpr int64_t kRowsAhead = 32;
constexpr std::size_t kBytesAhead = std::size_t{4} << 20;

// The limit when the queue grows. More would not stay in the processor's caches. Without: 1.06 for one layer.
constexpr std::size_t kGrownBytes = std::size_t{256} << 10;

// What a replica takes at a time under the lock of the queue. Memory that pump and program share moves between cores at
// 0.1 us and more. Without: 1.2 to 1.3 for elements of 4 and 64 KiB.
constexpr int64_t kBatchElements = 16;
constexpr std::size_t kBatchBytes = std::size_t{16} << 10;

// Elements up to this size are copied into memory of the queue: releasing tensors of another core takes longer.
// Without: 1.0 where the cores share a cache; it was chosen where they do not.
constexpr std::size_t kCopiedBytes = 1024;

// Outfeeds. `benchmarks/outfeed-latency` and `benchmarks/loop-overhead` measure them.

// The largest allocation of an outfeed. Without, a row at a time: 1.8 for rows of 4 bytes.
constexpr std::size_t kMostBytes = std::size_t{1} << 20;

// Bytes between two checks of the available memory, which take 10 us, and bytes that are left to others. Without: 1.07
// for rows of 4 bytes.
constexpr std::size_t kUncheckedBytes = std::size_t{64} << 20;
constexpr std::size_t kSpareBytes = std::size_t{256} << 20;

// Unread bytes of a deleted queue from which on freed memory is returned to the system. The C library keeps pieces of 1
// MiB for later use.
constexpr std::size_t kReturnedBytes = std::size_t{64} << 20;

// Collectives. `benchmarks/collective-throughput` and `benchmarks/replica-scaling` measure them.

// Bytes of all replicas from which on threads share a collective: in the 10 us of a wake one thread does about as many.
// Without: 1.2 for 1 MiB a replica.
constexpr std::size_t kSharedBytes = std::size_t{1} << 20;

// Bytes of one replica in a piece. A piece of all replicas fits in a second-level cache, so that the output is still
// there when it is copied. Without: 1.25 for 1 MiB.
constexpr int64_t kPieceBytes = int64_t{32} << 10;

// How long the waiting programs run on, all together, to be worth another thread. Without other threads: 1.4 for four
// replicas.
constexpr std::chrono::nanoseconds kWorthAThread{60000};

// How long the thread of a collective's last piece spins for another thread to share the callbacks. Without: 1.04 for
// four replicas.
constexpr std::chrono::nanoseconds kAwaitSpinning{10000};

// The longest spin of an executor's thread for its next task; see TaskSpin. Without: 1.2 for four replicas.
constexpr std::chrono::nanoseconds kLongestTaskSpin{500000};

// Collectives that span workers. `benchmarks/host-collectives` measures them.

// Bytes of a chunk, and chunks in flight.
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr int64_t kChunksInFlight = 4;

// Bytes of a chunk from which on three workers or more reduce a part each and then exchange the results: twice the
// bytes and a second round trip, but independent of the number of workers.
constexpr std::size_t kHalvedBytes = std::size_t{64} << 10;

// How often a worker that waits for others looks for the reason.
constexpr std::chrono::milliseconds kPeerCheckInterval{500};

// How long the thread of MPI tests without a sleep after something has happened, the part of the time since then that
// it sleeps at a time, and the longest sleep: a message waits at most by that part longer, and an idle worker takes
// less than a hundredth of a core.
constexpr std::chrono::nanoseconds kMpiSpin{20000};
constexpr int64_t kMpiSleepShare = 16;
constexpr std::chrono::nanoseconds kMpiSleep{2000000};

// The shortest sleep on a host with more workers than processors, where tests take time from a worker that computes.
constexpr std::chrono::nanoseconds kMpiCrowdedSleep{50000};

constexpr std::chrono::seconds kIdleThread{2};

}  // namespace tensorflow_ipu::core
