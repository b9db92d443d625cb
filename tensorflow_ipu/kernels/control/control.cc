// The C functions that Python calls to create, query and destroy the objects of kernels.
#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/collectives/cross_host_collective.h"
#include "tensorflow_ipu/kernels/device/ipu_device.h"
#include "tensorflow_ipu/kernels/feeds/feeds.h"
#include "tensorflow_ipu/kernels/feeds/pump.h"
#include "tensorflow_ipu/kernels/host/embedding_table.h"
#include "tensorflow_ipu/kernels/host/function.h"
#include "tensorflow_ipu/kernels/host/kernel.h"
#include "tensorflow_ipu/kernels/host/python_end.h"
#include "tensorflow_ipu/kernels/lowering/compile.h"
#include "tensorflow_ipu/kernels/replicas/call_sites.h"
#include "tensorflow_ipu/kernels/replicas/device_state.h"
#include "tensorflow_ipu/kernels/replicas/device_turns.h"
#include "tensorflow_ipu/kernels/replicas/workers.h"
#include "tensorflow_ipu/kernels/support/metrics.h"
#include "tensorflow_ipu/kernels/support/threads.h"
#include "tensorflow_ipu/kernels/support/waiting.h"

namespace tensorflow_ipu {
namespace {

// True while a run is active that Ctrl-C can end. The lock makes sure that a signal at the end of a run is handled by
// either the run or Python, not by both.
absl::Mutex arming;
bool armed ABSL_GUARDED_BY(arming) = false;
int forward_to ABSL_GUARDED_BY(arming) = -1;  // The previous wake-up descriptor for signals; -1 if there was none.

void Interrupt() {
  core::Interrupt();
  for (const auto& infeed : Infeeds().All()) {
    if (const auto queue = infeed->queue()) queue->Interrupt();
  }
  for (const auto& function : HostFunctions().All()) function->Cancel();
  InterruptWaitingRuns();
  for (const auto& replica_group : ReplicaGroups()) {
    replica_group->Abort(absl::CancelledError("The run was interrupted while replicas waited for each other."));
  }
}

// Handles signals. Python's signal handler writes the number of each signal to the other end of `signals`.
void Watch(int signals) {
  unsigned char number = 0;
  while (true) {
    const ssize_t got = read(signals, &number, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got != 1) return;
    const absl::MutexLock lock(&arming);
    if (!armed) continue;
    if (number == SIGINT) Interrupt();
    // If the pipe is full, its reader is already awake.
    if (forward_to >= 0 && write(forward_to, &number, 1) < 0) continue;
  }
}

void Write(std::ostream& text, const core::Passed& passed) {
  text << passed.elements << ' ' << passed.bytes << ' ' << passed.waits << ' ' << passed.wait_ns;
}

void Write(std::ostream& text, const char* name, const core::Samples& samples, int64_t most) {
  const core::Samples::Summary summary = samples.Read(most);
  text << "metric " << name << ' ' << summary.count << ' ' << summary.total << '\n';
  for (const core::Samples::Sample& sample : summary.latest) {
    text << "sample " << name << ' ' << sample.end << ' ' << sample.duration << '\n';
  }
}

// Returns true in a forked child. It has none of the threads, and one of them may have held a lock at the fork. So a
// child must not remove objects.
bool IsForked() {
  static const pid_t owner = getpid();
  return getpid() != owner;
}
[[maybe_unused]] const bool owner_is_known = IsForked();

// Removes an object when its Python object is deleted. Python's garbage collector calls the `drop` functions directly,
// so no Python code can check for a fork.
template <typename T>
std::shared_ptr<T> Drop(core::Registry<T>* registry, int64_t number) {
  return IsForked() ? nullptr : registry->Remove(number);
}

// Returns a property of an outfeed, or 0 if there is none.
int64_t OutfeedProperty(int64_t number, int64_t (core::Outfeed::*property)() const) {
  const auto outfeed = Outfeeds().Find(number);
  return outfeed == nullptr ? 0 : ((*outfeed).*property)();
}

}  // namespace

extern "C" {

// Configures the devices /device:IPU:0 to /device:IPU:<count - 1>. `ipus` has the number of IPUs of each device.
void ipu_configure_devices(const int32_t* ipus, const int32_t* connections, int32_t count) {
  std::vector<Configured> devices;
  for (int32_t i = 0; i < count; ++i) {
    devices.push_back({ipus[i], static_cast<Connection>(connections[i])});
  }
  ConfigureDevices(std::move(devices));
}

// Returns the type in which the host's kernels compute layers of this type. Types are `tf.DType.as_datatype_enum`.
int32_t ipu_computed_type(int32_t type) { return ComputedType(static_cast<tensorflow::DataType>(type)); }

// Returns 1 if oneDNN computes this type on this processor.
int32_t ipu_one_dnn_computes(int32_t type) { return OneDnnComputes(static_cast<tensorflow::DataType>(type)) ? 1 : 0; }

// Creates a host function of a device's programs. Its body is set later.
int64_t ipu_host_function_new(int64_t device) { return HostFunctions().Add(std::make_shared<HostFunction>(device)); }

void ipu_host_function_drop(int64_t number) { Drop(&HostFunctions(), number); }

// Registers a user's function of a loaded library. Programs call it by the returned number.
int64_t ipu_user_function_new(void* function) {
  return UserFunctions().Add(std::make_shared<UserFunction>(reinterpret_cast<UserFunction>(function)));
}

void ipu_user_function_drop(int64_t number) { Drop(&UserFunctions(), number); }

// Creates a table of rows at `data`, which the caller keeps alive. The rows are float16 if `half`, else float32.
int64_t ipu_embedding_new(void* data, int64_t rows, int64_t width, int32_t half) {
  return EmbeddingTables().Add(std::make_shared<EmbeddingTable>(data, rows, width, half != 0));
}

// Sets whether programs may use a table.
void ipu_embedding_open(int64_t number, int32_t open) {
  if (const auto table = EmbeddingTables().Find(number)) table->SetOpen(open != 0);
}

void ipu_embedding_drop(int64_t number) { Drop(&EmbeddingTables(), number); }

// Creates an infeed of a device without starting it. It keeps `depth` elements per replica ready. Groups of
// `group_size` replicas (0: all) share each element. Groups are consecutive or, with `orthogonal`, orthogonal; see
// `Grouping`.
int64_t ipu_infeed_new(const char* name, int64_t depth, int64_t group_size, int32_t orthogonal, int64_t device) {
  const core::Grouping sharing{group_size, orthogonal != 0};
  return Infeeds().Add(std::make_shared<Infeed>(name, depth, sharing, &TurnsOf(device)));
}

void ipu_infeed_drop(int64_t number) {
  if (!IsForked()) DeleteInfeed(number);
}

// Returns the number of elements that were read and not dequeued yet; -1 if the infeed is not running.
int64_t ipu_infeed_ready(int64_t number) {
  const auto queue = QueueOfInfeed(number);
  return queue == nullptr ? -1 : queue->ready();
}

// Returns the number of programs that wait for an element; -1 if the infeed is not running.
int64_t ipu_infeed_waiting(int64_t number) {
  const auto queue = QueueOfInfeed(number);
  return queue == nullptr ? -1 : queue->waiting();
}

// Creates an outfeed. With `last`, it keeps only the latest element.
int64_t ipu_outfeed_new(const char* name, int32_t last) {
  return Outfeeds().Add(
      std::make_shared<core::Outfeed>(name, last != 0 ? core::Outfeed::Mode::kLast : core::Outfeed::Mode::kAll));
}

// Returns 0 if there is no such outfeed.
int32_t ipu_outfeed_drop(int64_t number) { return IsForked() || DeleteOutfeed(number) ? 1 : 0; }

// Returns the number of the elements' layout; 0 before the first element.
int64_t ipu_outfeed_layout(int64_t number) { return OutfeedProperty(number, &core::Outfeed::layout); }

// Returns the number of replicas of the programs that enqueue; 0 before the first element.
int64_t ipu_outfeed_replicas(int64_t number) { return OutfeedProperty(number, &core::Outfeed::replicas); }

int64_t ipu_outfeed_ready(int64_t number) { return OutfeedProperty(number, &core::Outfeed::ready); }

// Returns the arrival time of the latest row that a reader waited for, in nanoseconds of the monotonic clock. Used by
// measurements.
int64_t ipu_outfeed_woken_ns(int64_t number) { return OutfeedProperty(number, &core::Outfeed::woken_ns); }

// Creates a call site of a collective in a device's programs. `what` describes the operation, so that workers can
// compare it. It is empty if no data is exchanged. Groups have `group_size` replicas (0: all).
int64_t ipu_site_new(int64_t device, const char* name, const char* what, int64_t group_size, int32_t orthogonal) {
  return CallSites().Add(std::make_shared<core::CallSite>(name, ReplicaGroupOf(device), what,
                                                          core::Grouping{group_size, orthogonal != 0}));
}

// Sets the maximum size of the chunks that workers send each other; 0: the default.
void ipu_set_chunk_bytes(int64_t bytes) { core::SetChunkBytes(static_cast<std::size_t>(bytes)); }

void ipu_site_drop(int64_t number) {
  if (const auto site = Drop(&CallSites(), number)) site->Close();
}

// Returns a number that identifies a device's random streams in programs.
int64_t ipu_random_new(int64_t device) { return RandomStreams().Add(RandomStreamsOf(device)); }

void ipu_random_drop(int64_t number) { Drop(&RandomStreams(), number); }

// Restarts the random streams of a device from a seed. With `identical`, all replicas draw the same values.
void ipu_random_reset(int64_t device, uint64_t seed, int32_t identical) {
  RandomStreamsOf(device)->Reset(seed, identical != 0);
}

// Restarts the random streams of all devices from random seeds.
void ipu_random_forget() { ForgetSeeds(); }

// Begins to join the processes of an MPI communicator, or all processes if it is 0. Each line of `libraries` is a
// candidate: a number of `MpiInterface`, a blank and the path.
//
// Returns three lines: the library, the rank of this process and the number of processes. On failure it returns "!" and
// an error, which is empty if there is no library. The text is valid until the thread's next call.
const char* ipu_open_workers(const char* libraries, uint64_t communicator, const char* name) {
  static thread_local std::string text;
  std::vector<core::MpiLibrary::Candidate> candidates;
  for (const absl::string_view line : absl::StrSplit(libraries, '\n')) {
    candidates.push_back({std::string(line.substr(2)), static_cast<core::MpiInterface>(line[0] - '0')});
  }
  Rank rank;
  const absl::Status status = OpenWorkers(candidates, communicator, name, &rank);
  text = status.ok() ? absl::StrCat(rank.library, "\n", rank.rank, "\n", rank.size)
                     : absl::StrCat("!", status.code() == absl::StatusCode::kNotFound ? "" : status.message());
  return text.c_str();
}

// Waits up to `wait` seconds until all processes have joined. `limit` is the limit in seconds of later waits for
// another process.
//
// Returns the names of all processes, one per line. If some are missing, it returns "?" and the ranks that are known to
// be missing, separated by blanks. On failure it returns "!" and an error.
const char* ipu_join_workers(double wait, double limit) {
  static thread_local std::string text;
  const auto nanoseconds = [](double seconds) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  };
  std::vector<int> missing;
  const absl::Status status = JoinWorkers(nanoseconds(wait), nanoseconds(limit), &missing);
  const std::shared_ptr<const core::Workers> workers = CurrentWorkers();
  text = !status.ok()         ? absl::StrCat("!", status.message())
         : workers == nullptr ? absl::StrCat("?", absl::StrJoin(missing, " "))
                              : absl::StrJoin(workers->names, "\n");
  return text.c_str();
}

// Returns the number of runs that wait for their turn on a device.
int64_t ipu_runs_waiting(int64_t device) { return TurnsOf(device).waiting(); }

// Marks this thread as one that runs an application; see `device_turns.h`.
void ipu_run_application_on_this_thread() { RunApplicationOnThisThread(); }

// Sets the maximum time that a program waits for data; 0: no limit.
void ipu_set_wait_limit(int64_t nanoseconds) { core::wait_limit_ns = nanoseconds; }

// Starts the thread that ends waits on Ctrl-C. `signals` is the reading end of Python's wake-up pipe. Returns 0 if the
// thread cannot be started.
int32_t ipu_interrupt_watch(int32_t signals) {
  return core::StartThread("ipu-signals", [signals] { Watch(signals); }).ok();
}

// Lets Ctrl-C end waits on infeeds and makes feeds reject calls, until `ipu_interrupt_disarm`. Signals are forwarded to
// `forward`, unless it is -1.
void ipu_interrupt_arm(int32_t forward) {
  const absl::MutexLock lock(&arming);
  armed = true;
  core::main_thread_runs = true;
  forward_to = forward;
}

// Reverts `ipu_interrupt_arm`, so that feeds can be used again.
void ipu_interrupt_disarm() {
  const absl::MutexLock lock(&arming);
  armed = false;
  core::main_thread_runs = false;
  core::interrupted = false;
}

// Ends all infeeds. Waits for their pumps and for the programs on this package's threads, because both may release
// Python objects while the interpreter still exists. Returns 0 if any of them did not end in time.
int32_t ipu_shut_down(int64_t nanoseconds) {
  const std::chrono::nanoseconds limit(nanoseconds);
  for (const auto& infeed : Infeeds().All()) infeed->Stop();
  const bool pumps = Pump::AwaitAll(limit);
  return core::Executor::Global().AwaitIdle(limit) && pumps;
}

// Prepares the exit of a process in which threads of this package still run. These threads must not call Python, nor
// use objects that static destructors destroy. So the process exits, with its exit code, before the destructors run.
void ipu_end_process() {
  EndPython();
  on_exit(
      [](int code, void*) {
        std::fflush(nullptr);
        std::cout.flush();
        _exit(code);
      },
      nullptr);
}

// Returns all metrics, one per line, with fields separated by blanks. Times are in nanoseconds. `gone` lines have the
// totals of deleted queues:
//
//   counter <name> <value>
//   metric <name> <count> <total>, followed by up to `samples` latest samples: sample <name> <end> <duration>
//   gone infeed|outfeed <elements> <bytes> <waits> <waited>
//   infeed|outfeed <number> <elements> <bytes> <waits> <waited> <ready> <depth> <name, to the end of the line>
//
// The text is valid until the calling thread calls this function again.
const char* ipu_metrics(int64_t samples) {
  static thread_local std::string kept;
  core::Metrics& metrics = core::Metrics::Global();
  std::ostringstream text;
  for (const auto& [name, count] : core::Counters::Global().Read()) text << "counter " << name << ' ' << count << '\n';
  Write(text, "InfeedWaitTime", metrics.infeed_waits, samples);
  Write(text, "CollectiveWaitTime", metrics.collective_waits, samples);
  Write(text, "GraphRunTime", metrics.graph_runs, samples);
  Write(text, "CompileTime", CompileTimes(), samples);
  const PassedByDeleted passed = ReadPassedByDeleted();
  text << "gone infeed ";
  Write(text, passed.infeeds);
  text << "\ngone outfeed ";
  Write(text, passed.outfeeds);
  text << '\n';
  for (const auto& [number, infeed] : Infeeds().Entries()) {
    const auto queue = infeed->queue();
    text << "infeed " << number << ' ';
    Write(text, infeed->passed());
    text << ' ' << (queue == nullptr ? 0 : queue->ready()) << ' ' << (queue == nullptr ? 0 : queue->depth()) << ' '
         << infeed->name() << '\n';
  }
  for (const auto& [number, outfeed] : Outfeeds().Entries()) {
    text << "outfeed " << number << ' ';
    Write(text, outfeed->passed());
    text << ' ' << outfeed->ready() << " 0 " << outfeed->name() << '\n';
  }
  kept = text.str();
  return kept.c_str();
}

// Removes and returns the messages that native threads want Python to log. Each line has the time in nanoseconds of the
// monotonic clock, a blank and the text. The result is valid until the calling thread calls this function again.
const char* ipu_journal() {
  static thread_local std::string kept;
  std::ostringstream text;
  for (const auto& line : core::Journal::Global().Take()) {
    text << line.when << ' ';
    for (const char letter : line.text) text << (letter == '\n' ? ' ' : letter);
    text << '\n';
  }
  kept = text.str();
  return kept.c_str();
}

}  // extern "C"
}  // namespace tensorflow_ipu
