// The numbers of the core that were chosen by measurement, each with its unit and with what chose it.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_TUNING_H_
#define TENSORFLOW_IPU_KERNELS_CORE_TUNING_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tensorflow_ipu::core {

// Feeds. `benchmarks/infeed-throughput` and `benchmarks/loop-overhead` measure them.

// Tries to lock the mutex of a queue or of a lane's cache before the thread sleeps: pump and program hold these for
// under 0.1 us, and a sleep and a wake take some 10 us.
constexpr int kLockTries = 64;

// How long a program of one replica spins for an element: about twice what a thread needs to sleep and wake. Each wait
// that takes longer halves the limit for the next one, down to the least, so that a slow dataset does not cost a core.
constexpr std::chrono::nanoseconds kLongestSpin{20000};
constexpr std::chrono::nanoseconds kShortestSpin{500};

// What an infeed keeps ready beyond its depth, from the start: so many rows, of so many bytes in all. Each wake of the
// pump takes a core from the program, so it had better serve several elements.
constexpr int64_t kRowsAhead = 32;
constexpr std::size_t kBytesAhead = std::size_t{4} << 20;

// Bytes that this may grow to where the queue runs full and then empty: more would leave the processor's caches before
// it is taken.
constexpr std::size_t kGrownBytes = std::size_t{256} << 10;

// What a lane takes at a time under the lock of the queue: elements, and bytes in all. What pump and program both touch
// moves between their cores' caches at 0.1 us and more; without batches the two queues of a loop of small steps added
// 1.2 us a step, with them 0.35 us.
constexpr int64_t kBatchElements = 16;
constexpr std::size_t kBatchBytes = std::size_t{16} << 10;

// Bytes up to which an element is copied into memory that the queue keeps: to follow references to tensors on another
// core, to count them down and to free them takes longer than so many bytes do.
constexpr std::size_t kCopiedBytes = 1024;

// Outfeeds. `benchmarks/outfeed-latency` and `benchmarks/loop-overhead` measure them.

// Memory that an outfeed allocates at a time: as many rows as are unread, from the least to as many bytes.
constexpr int64_t kFewestRows = 16;
constexpr std::size_t kMostBytes = std::size_t{1} << 20;

// Bytes that an outfeed may allocate between two looks at the memory that is left, each of which takes some 10 us; and
// bytes that it leaves to others.
constexpr std::size_t kUncheckedBytes = std::size_t{64} << 20;
constexpr std::size_t kSpareBytes = std::size_t{256} << 20;

// Collectives. `benchmarks/collective-throughput` and `benchmarks/replica-scaling` measure them.

// Bytes of all replicas from which on threads share the work of a collective: a thread needs some 10 us to wake up, in
// which one thread gets through about as many.
constexpr std::size_t kSharedBytes = std::size_t{1} << 20;

// Bytes that one replica contributes to a piece of that work: those of all replicas fit in a second-level cache, so
// that an output that was reduced is still there when it is copied to the other replicas.
constexpr int64_t kPieceBytes = int64_t{32} << 10;

// How long the programs that wait for an answer must run on, all together, to be worth another thread, which has to
// wake up, to load what they work on into its cache, and to contend for locks.
constexpr std::chrono::nanoseconds kWorthAThread{60000};

// How long a thread that did the last piece of a collective's work spins until another one is ready to share what comes
// then: within that time all that took part are done.
constexpr std::chrono::nanoseconds kOthersAreDone{10000};

// How long a thread of the executor spins for its next task where it is about to come: at most the running median of
// what programs run on for between two collectives, and never longer than this.
constexpr std::chrono::nanoseconds kLongestTaskSpin{500000};

// How long an idle thread of the executor stays, asleep.
constexpr std::chrono::seconds kIdleThread{2};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_TUNING_H_
