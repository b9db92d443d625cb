// The handler of collectives, which passes the replica's buffers to the call site.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "tensorflow_ipu/kernels/ffi/binding.h"
#include "tensorflow_ipu/kernels/replicas/call_sites.h"
#include "tensorflow_ipu/kernels/support/program_state.h"
#include "tensorflow_ipu/kernels/support/registry.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

core::Contribution Gather(const ffi::RemainingArgs& arguments, std::size_t states, const ffi::RemainingRets& results) {
  core::Contribution contribution(results.size());
  for (std::size_t i = 0; i < contribution.size(); ++i) {
    const ffi::AnyBuffer value = *arguments.get<ffi::AnyBuffer>(states + i);
    const ffi::AnyBuffer result = **results.get<ffi::AnyBuffer>(i);
    contribution[i] = {static_cast<core::DataType>(value.element_type()),
                       static_cast<const std::byte*>(value.untyped_data()),
                       static_cast<std::byte*>(result.untyped_data()), static_cast<int64_t>(value.element_count()),
                       static_cast<int64_t>(result.element_count())};
  }
  return contribution;
}

Answer Meet(ffi::RemainingArgs arguments, ffi::Result<StateBuffer> next_state, ffi::RemainingRets results, int64_t kind,
            int64_t reduction, int64_t group_size, bool orthogonal, int64_t root) {
  const core::OrderedState states = core::OrderedStateAt(StatesOf(arguments));
  const core::ProgramState& at = states.used;
  static thread_local core::LookupCache<core::CallSite> cache;
  cache.Find(at.number, [](int64_t number) { return CallSites().Find(number); });
  // Keeps the site alive: a nested program on this thread may replace it in the cache.
  const std::shared_ptr<core::CallSite> site = cache.object();
  if (site == nullptr) {
    return ToError(
        absl::NotFoundError("A collective of this program was deleted with the traced function. Keep "
                            "the `tf.function` as long as its programs run."));
  }
  core::Advance(states.advanced, next_state->untyped_data());
  const core::Collective collective = {
      static_cast<core::Kind>(kind), static_cast<core::Reduction>(reduction), {group_size, orthogonal}, root};

  // The last replica of a group to arrive, or a single one, gets its result at once. The others get it by the future.
  ffi::Promise promise;
  ffi::Future future(promise);
  auto called = [promise](absl::Status status) mutable {
    if (status.ok()) return promise.SetAvailable();
    promise.SetError(ToError(std::move(status)));
  };
  std::optional<absl::Status> answer =
      site->Arrive(at.replica, at.replicas, collective, Gather(arguments, states.states, results), std::move(called));
  if (answer.has_value()) return ToError(*std::move(answer));
  return future;
}

// Arguments: the order, if there is one, the state, and the values. Results: the next state, and the results of the
// values.
IPU_HANDLER("ipu_collective", Meet,
            BindStateAndValues()
                .Attr<int64_t>("kind")
                .Attr<int64_t>("reduction")
                .Attr<int64_t>("group_size")
                .Attr<bool>("orthogonal")
                .Attr<int64_t>("root"));

}  // namespace
}  // namespace tensorflow_ipu
