#include "tensorflow_ipu/kernels/collectives/host_exchanges.h"

#include <memory>
#include <utility>

#include "tensorflow_ipu/kernels/collectives/joint_runs.h"
#include "tensorflow_ipu/kernels/collectives/workers.h"
#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/network.h"
#include "tensorflow_ipu/kernels/core/reports.h"

namespace tensorflow_ipu {

namespace {

// Never destroyed: threads of programs may outlive static destructors.
struct Exchanges {
  core::Mutex mutex;
  int64_t begun IPU_GUARDED_BY(mutex) = 0;
  std::shared_ptr<core::Network::Calls> told
      IPU_GUARDED_BY(mutex);  // What is ready for others. Null between exchanges.
};

Exchanges& TheExchanges() {
  static auto* const exchanges = new Exchanges();
  return *exchanges;
}

}  // namespace

void BeginHostExchange(const std::string& words) {
  const std::shared_ptr<const core::Workers> workers = CurrentWorkers();
  if (workers == nullptr) return;
  const std::shared_ptr<core::Network::Calls> calls = workers->network->NewCalls();
  int64_t number = 0;
  {
    const core::Lock lock(TheExchanges().mutex);
    number = ++TheExchanges().begun;
    TheExchanges().told = calls;
  }
  const std::shared_ptr<const core::Message> message = core::MessageOf(core::HostExchange::Of(words));
  for (const std::string& run : NextJointRuns()) {
    for (int64_t worker = 0; worker < workers->count(); ++worker) {
      if (worker == workers->worker) continue;
      workers->network->Send(calls, worker, core::HostExchange::Key(run, number), message, [](const core::Outcome&) {});
    }
  }
}

void EndHostExchange() {
  std::shared_ptr<core::Network::Calls> calls;
  {
    const core::Lock lock(TheExchanges().mutex);
    calls = std::move(TheExchanges().told);
    TheExchanges().told = nullptr;
  }
  if (calls != nullptr) calls->Cancel();
}

int64_t HostExchangesBegun() {
  const core::Lock lock(TheExchanges().mutex);
  return TheExchanges().begun;
}

}  // namespace tensorflow_ipu
