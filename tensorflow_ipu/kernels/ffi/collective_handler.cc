// Handler of collectives: passes the replica's buffers to the call site where the replicas meet.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "tensorflow_ipu/kernels/collectives/call_sites.h"
#include "tensorflow_ipu/kernels/core/program_state.h"
#include "tensorflow_ipu/kernels/ffi/frame.h"
#include "tensorflow_ipu/kernels/ffi/reply.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

std::optional<core::DataType> TypeOf(ffi::DataType type) {
  switch (type) {
    case ffi::PRED:
      return core::DataType::kBool;
    case ffi::F16:
      return core::DataType::kF16;
    case ffi::BF16:
      return core::DataType::kBF16;
    case ffi::F32:
      return core::DataType::kF32;
    case ffi::F64:
      return core::DataType::kF64;
    case ffi::S8:
      return core::DataType::kS8;
    case ffi::S16:
      return core::DataType::kS16;
    case ffi::S32:
      return core::DataType::kS32;
    case ffi::S64:
      return core::DataType::kS64;
    case ffi::U8:
      return core::DataType::kU8;
    case ffi::U16:
      return core::DataType::kU16;
    case ffi::U32:
      return core::DataType::kU32;
    case ffi::U64:
      return core::DataType::kU64;
    default:
      return std::nullopt;
  }
}

// XLA orders the attributes by their names.
core::Collective CollectiveOf(const XLA_FFI_Attrs& attributes) {
  const int64_t group_size = ScalarOf<int64_t>(attributes.attrs[0]);
  const auto kind = static_cast<core::Kind>(ScalarOf<int64_t>(attributes.attrs[1]));
  const bool orthogonal = ScalarOf<bool>(attributes.attrs[2]);
  const auto reduction = static_cast<core::Reduction>(ScalarOf<int64_t>(attributes.attrs[3]));
  const int64_t root = ScalarOf<int64_t>(attributes.attrs[4]);
  return {kind, reduction, {group_size, orthogonal}, root};
}

core::Outcome Gather(const XLA_FFI_CallFrame& frame, int64_t states, core::Contribution* contribution) {
  const int64_t count = frame.rets.size - 1;  // Without the state.
  contribution->reserve(static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto& value = *static_cast<const XLA_FFI_Buffer*>(frame.args.args[states + i]);
    const auto& result = *static_cast<const XLA_FFI_Buffer*>(frame.rets.rets[1 + i]);
    const std::optional<core::DataType> type = TypeOf(static_cast<ffi::DataType>(value.dtype));
    if (!type.has_value()) return core::Outcome::InvalidArgument("A collective got a value of a type that it lacks.");
    contribution->push_back({*type, static_cast<const std::byte*>(value.data), static_cast<std::byte*>(result.data),
                             ElementsOf(value), ElementsOf(result)});
  }
  return core::Outcome::Ok();
}

Reply Meet(const XLA_FFI_CallFrame& frame) {
  const core::OrderedState states = core::OrderedStateAt(StatesOf(frame));
  const core::ProgramState& at = states.used;
  static thread_local core::LookupCache<core::CallSite> cache;
  cache.Find(at.number, [](int64_t number) { return CallSites().Find(number); });
  const std::shared_ptr<core::CallSite> site = cache.object();  // Programs that run inside of this one look up others.
  if (site == nullptr) {
    return {core::Outcome::NotFound("A collective of this program was deleted with the function that was traced. Keep "
                                    "the `tf.function` as long as its programs run."),
            {}};
  }
  core::Advance(states.advanced, DataOf(frame.rets.rets[0]));
  const core::Collective collective = CollectiveOf(frame.attrs);
  core::Contribution contribution;
  core::Outcome gathered = Gather(frame, states.states, &contribution);
  if (!gathered.ok()) return {std::move(gathered), {}};

  // The last replica of a group to arrive, or a single one, gets its answer at once; the others by the future.
  ffi::Promise promise;
  std::optional<ffi::Future> future(promise);
  std::optional<core::Outcome> answer =
      site->Arrive(at.lane, at.lanes, collective, std::move(contribution), [promise](core::Outcome outcome) mutable {
        if (outcome.ok()) {
          promise.SetAvailable();
        } else {
          promise.SetError(ToError(std::move(outcome)));
        }
      });
  if (answer.has_value()) return {std::move(*answer), {}};
  return {core::Outcome::Ok(), std::move(future)};
}

// Arguments: the order, if there is one, the state, and the values. Results: the next state, and those of the values.
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_collective", "Host", CalledWithFrame<Meet>);

}  // namespace
}  // namespace tensorflow_ipu
