// Counts and measurements, as text for Python.
#include "tensorflow_ipu/kernels/control/metrics.h"

#include <cstdint>
#include <sstream>
#include <string>

#include "tensorflow_ipu/kernels/core/journal.h"
#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/samples.h"
#include "tensorflow_ipu/kernels/feeds/infeeds.h"
#include "tensorflow_ipu/kernels/feeds/outfeeds.h"
#include "tensorflow_ipu/kernels/host/embedding_table.h"
#include "tensorflow_ipu/kernels/lowering/compilations.h"

namespace tensorflow_ipu {
namespace {

core::Mutex gone_mutex;
core::Passed gone_infeeds IPU_GUARDED_BY(gone_mutex);
core::Passed gone_outfeeds IPU_GUARDED_BY(gone_mutex);

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

}  // namespace

void NoteGone(const core::Passed& passed, Queue kind) {
  const core::Lock lock(gone_mutex);
  (kind == Queue::kInfeed ? gone_infeeds : gone_outfeeds) += passed;
}

}  // namespace tensorflow_ipu

// All metrics, a line each, of words with blanks between them; times in nanoseconds:
//
//   counter <name> <value>
//   metric <name> <count> <total>, with the latest, so many at most: sample <name> <end> <duration>
//   gone infeed|outfeed <elements> <bytes> <waits> <waited>
//   infeed|outfeed <number> <elements> <bytes> <waits> <waited> <ready> <depth> <name, to the end of the line>
//
// The text is the calling thread's until it asks again.
extern "C" const char* ipu_metrics(int64_t samples) {
  namespace core = tensorflow_ipu::core;
  using tensorflow_ipu::EmbeddingTraffic;
  using tensorflow_ipu::Write;
  static thread_local std::string kept;
  core::Metrics& metrics = core::Metrics::Global();
  std::ostringstream text;
  const auto counter = [&](const char* name, const std::atomic<int64_t>& value) {
    text << "counter " << name << ' ' << value.load(std::memory_order_relaxed) << '\n';
  };
  counter("Collectives", metrics.collectives);
  counter("CollectiveBytes", metrics.collective_bytes);
  counter("Crossings", metrics.crossings);
  counter("CrossingBytes", metrics.crossing_bytes);
  const EmbeddingTraffic& embeddings = EmbeddingTraffic::Global();
  counter("EmbeddingLookups", embeddings.lookups);
  counter("EmbeddingRowsRead", embeddings.rows_read);
  counter("EmbeddingUpdates", embeddings.updates);
  counter("EmbeddingRowsUpdated", embeddings.rows_updated);
  counter("ExecutablesLoaded", metrics.executables_loaded);
  counter("ExecutablesStored", metrics.executables_stored);
  for (const auto& [type, calls] : metrics.host_kernel_calls.Read()) {
    text << "counter HostKernelCalls:" << type << ' ' << calls << '\n';
  }
  counter("HostFunctionCalls", metrics.host_function_calls);
  counter("UserOperationCalls", metrics.user_operation_calls);
  counter("VariableReads", metrics.variable_reads);
  counter("VariableReadBytes", metrics.variable_read_bytes);
  counter("VariableWrites", metrics.variable_writes);
  counter("VariableWriteBytes", metrics.variable_write_bytes);
  counter("FailedGraphRuns", metrics.failed_graph_runs);
  Write(text, "InfeedWaitTime", metrics.infeed_waits, samples);
  Write(text, "CollectiveWaitTime", metrics.collective_waits, samples);
  Write(text, "GraphRunTime", metrics.graph_runs, samples);
  Write(text, "CompileTime", tensorflow_ipu::CompileTimes(), samples);
  {
    const core::Lock lock(tensorflow_ipu::gone_mutex);
    text << "gone infeed ";
    Write(text, tensorflow_ipu::gone_infeeds);
    text << "\ngone outfeed ";
    Write(text, tensorflow_ipu::gone_outfeeds);
    text << '\n';
  }
  for (const auto& [number, infeed] : tensorflow_ipu::Infeeds().Entries()) {
    const auto queue = infeed->queue();
    text << "infeed " << number << ' ';
    Write(text, infeed->passed());
    text << ' ' << (queue == nullptr ? 0 : queue->ready()) << ' ' << (queue == nullptr ? 0 : queue->depth()) << ' '
         << infeed->name() << '\n';
  }
  for (const auto& [number, outfeed] : tensorflow_ipu::Outfeeds().Entries()) {
    text << "outfeed " << number << ' ';
    Write(text, outfeed->passed());
    text << ' ' << outfeed->ready() << " 0 " << outfeed->name() << '\n';
  }
  kept = text.str();
  return kept.c_str();
}

// Takes the messages of native threads for Python to log: a line each, of the time in nanoseconds of the monotonic
// clock, a blank and the text. The text is valid until the calling thread asks again.
extern "C" const char* ipu_journal() {
  static thread_local std::string kept;
  std::ostringstream text;
  for (const auto& line : tensorflow_ipu::core::Journal::Global().Take()) {
    text << line.when << ' ';
    for (const char letter : line.text) text << (letter == '\n' ? ' ' : letter);
    text << '\n';
  }
  kept = text.str();
  return kept.c_str();
}
