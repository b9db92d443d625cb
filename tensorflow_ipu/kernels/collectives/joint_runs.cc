#include "tensorflow_ipu/kernels/collectives/joint_runs.h"

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow_ipu/kernels/collectives/host_exchanges.h"
#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/waiting.h"

namespace tensorflow_ipu {

namespace {

// The runs of a device whose reports others may still ask for: those of a worker that is behind.
constexpr std::size_t kKept = 4;

// Never destroyed: threads of programs may outlive static destructors.
struct Runs {
  struct OfDevice {
    int64_t begun = 0;
    std::deque<std::shared_ptr<core::JointRun>> kept;
  };

  core::Mutex mutex;
  std::map<int64_t, OfDevice> devices IPU_GUARDED_BY(mutex);
};

Runs& AllRuns() {
  static auto* const runs = new Runs();
  return *runs;
}

std::string NameOf(int64_t device, int64_t number) { return absl::StrCat("ipu:", device, ":", number); }

}  // namespace

std::shared_ptr<core::JointRun> NewJointRun(const core::Workers& workers, int64_t device, core::Program program) {
  // The main thread exchanges; while it is in a run it begins no further exchange.
  const auto exchanges = core::main_thread_runs ? std::optional<int64_t>(HostExchangesBegun()) : std::nullopt;
  std::shared_ptr<core::JointRun> old;  // Goes when nothing is locked.
  std::shared_ptr<core::JointRun> run;
  {
    const core::Lock lock(AllRuns().mutex);
    Runs::OfDevice& runs = AllRuns().devices[device];
    const std::string name = NameOf(device, ++runs.begun);
    run = std::make_shared<core::JointRun>(workers, name, std::move(program), exchanges);
    runs.kept.push_back(run);
    if (runs.kept.size() > kKept) {
      old = std::move(runs.kept.front());
      runs.kept.pop_front();
    }
  }
  run->Begin();
  return run;
}

std::vector<std::string> NextJointRuns() {
  const core::Lock lock(AllRuns().mutex);
  std::vector<std::string> names;
  if (AllRuns().devices.count(0) == 0) names.push_back(NameOf(0, 1));  // Of others, the first run is told at the limit.
  for (const auto& [device, runs] : AllRuns().devices) names.push_back(NameOf(device, runs.begun + 1));
  return names;
}

}  // namespace tensorflow_ipu
