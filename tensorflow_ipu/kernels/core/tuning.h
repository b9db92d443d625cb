// The numbers of the core that were chosen by measurement, each with its unit and with what chose it. "Without" says
// how many times as long it took where that one was taken away, on two cores that share a third-level cache: least of
// three rounds, a feed of one layer in 2.2 us a step, elements of 4 bytes in 1.5 us, four replicas of an MLP in 290 us
// a step.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_TUNING_H_
#define TENSORFLOW_IPU_KERNELS_CORE_TUNING_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tensorflow_ipu::core {

// Feeds. `benchmarks/infeed-throughput` and `benchmarks/loop-overhead` measure them.

// How long a program of one replica spins for an element: about twice what a thread needs to sleep and wake. Each wait
// that takes longer halves the limit for the next one, down to the least, so that a slow dataset does not cost a core.
// Without: 1.6 for elements of 4 bytes to 64 KiB.
constexpr std::chrono::nanoseconds kLongestSpin{20000};
constexpr std::chrono::nanoseconds kShortestSpin{500};

// What an infeed keeps ready beyond its depth, from the start: so many rows, of so many bytes in all. Each wake of the
// pump takes a core from the program, so it had better serve several elements. Without: 1.17 for an MLP.
constexpr int64_t kRowsAhead = 32;
constexpr std::size_t kBytesAhead = std::size_t{4} << 20;

// Bytes that this may grow to where the queue runs full and then empty: more would leave the processor's caches before
// it is taken. Without: 1.06 for one layer.
constexpr std::size_t kGrownBytes = std::size_t{256} << 10;

// What a lane takes at a time under the lock of the queue: elements, and bytes in all. What pump and program both touch
// moves between their cores' caches at 0.1 us and more; without batches the two queues of a loop of small steps added
// 1.2 us a step, with them 0.35 us. Without: 1.2 to 1.3 for elements of 4 and 64 KiB.
constexpr int64_t kBatchElements = 16;
constexpr std::size_t kBatchBytes = std::size_t{16} << 10;

// Bytes up to which an element is copied into memory that the queue keeps: to follow references to tensors on another
// core, to count them down and to free them takes longer than so many bytes do. Without: 1.0 where the cores share a
// cache; it was chosen where they do not.
constexpr std::size_t kCopiedBytes = 1024;

// Outfeeds. `benchmarks/outfeed-latency` and `benchmarks/loop-overhead` measure them.

// Bytes that an outfeed allocates at a time at most, for as many rows as are unread. Without, a row at a time: 1.8 for
// rows of 4 bytes.
constexpr std::size_t kMostBytes = std::size_t{1} << 20;

// Bytes that an outfeed may allocate between two looks at the memory that is left, each of which takes some 10 us; and
// bytes that it leaves to others. Without: 1.07 for rows of 4 bytes.
constexpr std::size_t kUncheckedBytes = std::size_t{64} << 20;
constexpr std::size_t kSpareBytes = std::size_t{256} << 20;

// Collectives. `benchmarks/collective-throughput` and `benchmarks/replica-scaling` measure them.

// Bytes of all replicas from which on threads share the work of a collective: a thread needs some 10 us to wake up, in
// which one thread gets through about as many. Without: 1.2 for 1 MiB a replica.
constexpr std::size_t kSharedBytes = std::size_t{1} << 20;

// Bytes that one replica contributes to a piece of that work: those of all replicas fit in a second-level cache, so
// that an output that was reduced is still there when it is copied to the other replicas. Without: 1.25 for 1 MiB.
constexpr int64_t kPieceBytes = int64_t{32} << 10;

// How long the programs that wait for an answer must run on, all together, to be worth another thread, which has to
// wake up, to load what they work on into its cache, and to contend for locks. Without other threads: 1.4 for four
// replicas.
constexpr std::chrono::nanoseconds kWorthAThread{60000};

// How long a thread that did the last piece of a collective's work spins until another one is ready to share what comes
// then: within that time all that took part are done. Without: 1.04 for four replicas.
constexpr std::chrono::nanoseconds kOthersAreDone{10000};

// How long a thread of the executor spins for its next task where it is about to come: at most the running median of
// what programs run on for between two collectives, and never longer than this. Without: 1.2 for four replicas.
constexpr std::chrono::nanoseconds kLongestTaskSpin{500000};

// Crossings. `benchmarks/host-collectives` measures them.

// Bytes of a chunk of operands that travels in one message, and how many chunks are under way at once.
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr std::size_t kChunksInFlight = 4;

// Bytes of a chunk from which on three workers or more reduce a part each, and then hand it round: each sends two
// times its bytes then, and not one less than there are workers, at the price of a second way.
constexpr std::size_t kHalvedBytes = std::size_t{64} << 10;

// How often a worker that waits for others looks for the reason.
constexpr std::chrono::milliseconds kLookEvery{500};

// How long an idle thread of the executor stays, asleep.
constexpr std::chrono::seconds kIdleThread{2};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_TUNING_H_
