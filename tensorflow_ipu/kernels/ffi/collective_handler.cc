// The custom call of a collective: brings the replica's buffers to where the replicas meet.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
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

core::Outcome Gather(ffi::RemainingArgs arguments, int64_t states, ffi::RemainingRets results,
                     core::Contribution* contribution) {
  contribution->reserve(results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto value = arguments.get<ffi::AnyBuffer>(states + i);
    auto result = results.get<ffi::AnyBuffer>(i);
    if (value.has_error()) return {core::Code::kInternal, value.error().message()};
    if (result.has_error()) return {core::Code::kInternal, result.error().message()};
    const std::optional<core::DataType> type = TypeOf(value->element_type());
    if (!type.has_value()) return core::Outcome::InvalidArgument("A collective got a value of a type that it lacks.");
    contribution->push_back({*type, static_cast<const std::byte*>(value->untyped_data()),
                             static_cast<std::byte*>((*result)->untyped_data()),
                             static_cast<int64_t>(value->element_count()),
                             static_cast<int64_t>((*result)->element_count())});
  }
  return core::Outcome::Ok();
}

Reply Meet(int64_t kind, int64_t reduction, int64_t group_size, bool orthogonal, int64_t root,
           ffi::RemainingArgs arguments, ffi::ResultBuffer<ffi::S64> next_state, ffi::RemainingRets results) {
  const core::OrderedState states = core::OrderedStateAt(StatesOf(arguments));
  const core::ProgramState& at = states.used;
  static thread_local core::LookupCache<core::CallSite> cache;
  cache.Find(at.number, [](int64_t number) { return CallSites().Find(number); });
  const std::shared_ptr<core::CallSite> site = cache.object();  // Programs that run inside of this look up others.
  if (site == nullptr) {
    return {core::Outcome::NotFound("A collective of this program was deleted with the function that was traced. Keep "
                                    "the `tf.function` as long as its programs run."),
            {}};
  }
  core::Advance(states.advanced, next_state->untyped_data());
  const core::Collective collective{
      static_cast<core::Kind>(kind), static_cast<core::Reduction>(reduction), {group_size, orthogonal}, root};
  core::Contribution contribution;
  core::Outcome gathered = Gather(arguments, states.states, results, &contribution);
  if (!gathered.ok()) return {std::move(gathered), {}};

  // The last of a group to arrive has its answer at once, and so has a replica that is alone; for the others it comes.
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

XLA_FFI_DEFINE_HANDLER(kMeet, Meet,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>("kind")
                           .Attr<int64_t>("reduction")
                           .Attr<int64_t>("group_size")
                           .Attr<bool>("orthogonal")
                           .Attr<int64_t>("root")
                           .RemainingArgs()               // the order, if there is one, the state, and the values
                           .Ret<ffi::Buffer<ffi::S64>>()  // next_state
                           .RemainingRets());             // results
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_collective", "Host", kMeet);

}  // namespace
}  // namespace tensorflow_ipu
