#include "tensorflow_ipu/kernels/collectives/workers.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow_ipu/kernels/core/cross_host_collective.h"
#include "tensorflow_ipu/kernels/core/mpi_communicator.h"
#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/waiting.h"

namespace tensorflow_ipu {

namespace {

struct Current {
  core::Mutex mutex;
  std::unique_ptr<core::MpiJoin> join IPU_GUARDED_BY(mutex);
  std::shared_ptr<core::MpiCommunicator> communicator IPU_GUARDED_BY(mutex);
  std::shared_ptr<const core::Workers> workers IPU_GUARDED_BY(mutex);
};

Current& TheWorkers() { return core::NeverDestroyed<Current>(); }

// Of the process that initialized MPI, whose forked children end nothing.
pid_t mpi_process = 0;

// The C library calls it with the status of the process, which no handler of Python's knows.
void EndMpi(int status, void*) {
  if (getpid() != mpi_process) return;
  std::shared_ptr<core::MpiCommunicator> communicator;
  core::MpiLibrary mpi;
  {
    const core::Lock lock(TheWorkers().mutex);
    communicator = TheWorkers().communicator;
    mpi = TheWorkers().join->library();
  }
  if (status != 0) {
    std::fflush(nullptr);
    mpi.Abort(mpi.world, status);
  }
  if (communicator != nullptr) communicator->AwaitAll();
  mpi.Finalize();
}

}  // namespace

core::Status OpenWorkers(const std::vector<core::MpiLibrary::Candidate>& libraries, uintptr_t communicator,
                         const std::string& name) {
  {
    const core::Lock lock(TheWorkers().mutex);
    if (TheWorkers().join != nullptr) return core::Status::Ok();
  }
  // Without the lock: MPI waits here for all processes.
  core::MpiLibrary mpi;
  std::unique_ptr<core::MpiJoin> join;
  core::Status status = core::MpiLibrary::LoadFirst(libraries, &mpi);
  if (status.ok()) status = core::MpiJoin::Open(mpi, communicator, name, &join);
  if (!status.ok()) return status;
  const core::Lock lock(TheWorkers().mutex);
  TheWorkers().join = std::move(join);
  if (TheWorkers().join->initialized_here()) {
    mpi_process = getpid();
    on_exit(EndMpi, nullptr);
  }
  return status;
}

Rank OpenedRank() {
  const core::Lock lock(TheWorkers().mutex);
  const auto& join = TheWorkers().join;
  if (join == nullptr) return {};
  return {join->library().path, join->rank(), join->size(), join->initialized_here()};
}

core::Status JoinWorkers(std::chrono::nanoseconds wait, std::chrono::nanoseconds limit, bool* joined,
                         std::vector<int>* missing) {
  const core::Lock lock(TheWorkers().mutex);
  core::MpiJoin& join = *TheWorkers().join;
  const auto end = std::chrono::steady_clock::now() + wait;
  while (true) {
    core::Status status = join.Advance(joined);
    if (!status.ok()) return status;
    if (*joined) break;
    if (std::chrono::steady_clock::now() >= end) {
      *missing = join.Missing();
      return status;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  core::Status status;
  TheWorkers().communicator = core::MpiCommunicator::Make(join, &status);
  if (status.ok()) {
    TheWorkers().workers =
        std::make_shared<core::Workers>(core::Workers{join.names(), limit, TheWorkers().communicator});
  }
  return status;
}

void LeaveWorkers() {
  std::shared_ptr<core::MpiCommunicator> communicator;
  {
    const core::Lock lock(TheWorkers().mutex);
    communicator = std::move(TheWorkers().communicator);
    TheWorkers().workers = nullptr;
  }
  if (communicator != nullptr) communicator->Stop();
}

std::shared_ptr<const core::Workers> CurrentWorkers() {
  const core::Lock lock(TheWorkers().mutex);
  return TheWorkers().workers;
}

namespace {

// Runs whose reports a late worker may still ask for.
constexpr std::size_t kKept = 4;
constexpr char kMainThread[] = "host:";

struct Sequence {
  int64_t begun = 0;
  std::deque<std::shared_ptr<core::DistributedRun>> kept;
};

struct Runs {
  core::Mutex mutex;
  std::map<int64_t, std::string> devices IPU_GUARDED_BY(mutex) = {{0, "ipu:0"}};
  std::map<std::string, Sequence> sequences IPU_GUARDED_BY(mutex);
};

Runs& AllRuns() { return core::NeverDestroyed<Runs>(); }

std::shared_ptr<core::DistributedRun> Begin(const core::Workers& workers, const std::string& sequence,
                                            core::Program program, bool main_thread_runs) {
  std::shared_ptr<core::DistributedRun> old;  // Destroyed without a lock.
  std::shared_ptr<core::DistributedRun> run;
  {
    const core::Lock lock(AllRuns().mutex);
    // The main thread begins no exchange during a run.
    const auto exchanges =
        main_thread_runs ? std::optional<int64_t>(AllRuns().sequences[kMainThread].begun) : std::nullopt;
    Sequence& runs = AllRuns().sequences[sequence];
    const std::string name = absl::StrCat(sequence, ":", ++runs.begun);
    run = std::make_shared<core::DistributedRun>(workers, name, std::move(program), exchanges);
    runs.kept.push_back(run);
    if (runs.kept.size() > kKept) {
      old = std::move(runs.kept.front());
      runs.kept.pop_front();
    }
  }
  run->Begin();
  return run;
}

}  // namespace

std::shared_ptr<core::DistributedRun> NewDistributedRun(const core::Workers& workers, int64_t device,
                                                        core::Program program) {
  const std::string sequence = absl::StrCat("ipu:", device);
  {
    const core::Lock lock(AllRuns().mutex);
    AllRuns().devices[device] = sequence;
  }
  return Begin(workers, sequence, std::move(program), core::main_thread_runs);
}

HostExchange::HostExchange(const core::Workers& workers, const std::string& sequence, const std::string& words)
    : run_(Begin(workers, absl::StrCat("host:", sequence),
                 core::Program::OfExchange(words, static_cast<int64_t>(core::ChunkBytes())), false)) {
  if (!sequence.empty()) return;
  std::vector<std::string> keys;  // Of the next run of each device, which another worker may be in.
  {
    const core::Lock lock(AllRuns().mutex);
    const int64_t number = AllRuns().sequences[kMainThread].begun;
    for (const auto& [device, of_device] : AllRuns().devices) {
      const std::string next = absl::StrCat(of_device, ":", AllRuns().sequences[of_device].begun + 1);
      keys.push_back(core::ExchangeNotice::Key(next, number));
    }
  }
  announced_ = workers.communicator->NewCalls();
  const std::shared_ptr<const core::Message> notice = core::MessageOf(core::ExchangeNotice::Of(words));
  for (const std::string& key : keys) {
    for (int64_t worker = 0; worker < workers.count(); ++worker) {
      if (worker != workers.worker()) workers.communicator->Send(announced_, worker, key, notice, nullptr);
    }
  }
}

HostExchange::~HostExchange() {
  if (announced_ != nullptr) announced_->Cancel();
}

}  // namespace tensorflow_ipu
