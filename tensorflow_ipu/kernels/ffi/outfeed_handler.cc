// The custom calls of an outfeed enqueue: copy the program's buffers into the queue. One advances a state, which it
// returns. The other one is of programs whose queues are used in order as it is, and has an operand that it comes after
// behind the element (see lowering/implied_order.h).
#include <cstdint>
#include <memory>
#include <vector>

#include "tensorflow_ipu/kernels/core/of_thread.h"
#include "tensorflow_ipu/kernels/core/program_state.h"
#include "tensorflow_ipu/kernels/feeds/outfeeds.h"
#include "tensorflow_ipu/kernels/ffi/frame.h"
#include "tensorflow_ipu/kernels/ffi/reply.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

// What a thread keeps from call to call.
struct OutfeedCalls {
  core::LookupCache<core::Outfeed> cache;
  std::vector<core::Leaf> leaves;  // Of the element that is to be appended.
};

// Without a place for the next state, the state stays what it is. Without leaves, data are synthetic: there is no
// element.
core::Outcome Enqueue(const core::OrderedState& states, int64_t layout, OutfeedCalls* calls, void* next_state) {
  const core::ProgramState& at = states.used;
  core::Outfeed* const outfeed = calls->cache.Find(at.number, [](int64_t number) { return Outfeeds().Find(number); });
  if (outfeed == nullptr) {
    return core::Outcome::NotFound(
        "The outfeed queue of this program was deleted. Keep the queue as long as programs use it.");
  }
  if (next_state != nullptr) core::Advance(states.advanced, next_state);
  if (!calls->leaves.empty()) return outfeed->Append(at.lane, at.lanes, layout, calls->leaves);
  outfeed->Declare(layout);
  return core::Outcome::Ok();
}

// `others` arguments are behind the element.
ffi::Error EnqueueArguments(int64_t layout, const ffi::RemainingArgs& arguments, std::size_t others, void* next_state) {
  const core::OrderedState states = core::OrderedStateAt(StatesOf(arguments));
  OutfeedCalls& calls = core::OfThread<OutfeedCalls>();
  calls.leaves.resize(arguments.size() - others - states.states);
  for (std::size_t i = 0; i < calls.leaves.size(); ++i) {
    const auto leaf = arguments.get<ffi::AnyBuffer>(i + states.states);
    if (leaf.has_error()) return ToError({core::Code::kInternal, leaf.error().message()});
    calls.leaves[i] = {leaf->untyped_data(), leaf->size_bytes()};
  }
  return ToError(Enqueue(states, layout, &calls, next_state));
}

ffi::Error EnqueueBound(int64_t layout, ffi::RemainingArgs arguments, ffi::ResultBuffer<ffi::S64> next_state) {
  return EnqueueArguments(layout, arguments, /*others=*/0, next_state->untyped_data());
}

ffi::Error EnqueueUnorderedBound(int64_t layout, ffi::RemainingArgs arguments) {
  return EnqueueArguments(layout, arguments, /*others=*/1, /*next_state=*/nullptr);
}

XLA_FFI_DEFINE_HANDLER(kEnqueue, EnqueueBound,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>("layout")
                           .RemainingArgs()                 // the order, if there is one, the state, and the element
                           .Ret<ffi::Buffer<ffi::S64>>());  // next_state

XLA_FFI_DEFINE_HANDLER(
    kEnqueueUnordered, EnqueueUnorderedBound,
    ffi::Ffi::Bind().Attr<int64_t>("layout").RemainingArgs());  // the state, the element, and what the call comes after

template <bool kAdvances>
bool EnqueueFromFrame(const XLA_FFI_CallFrame& frame) {
  const core::OrderedState states = core::OrderedStateAt(StatesOf(frame));
  OutfeedCalls& calls = core::OfThread<OutfeedCalls>();
  calls.leaves.resize(static_cast<std::size_t>(frame.args.size - states.states) - (kAdvances ? 0 : 1));
  for (std::size_t i = 0; i < calls.leaves.size(); ++i) {
    const Memory leaf = MemoryOf(frame.args.args[i + states.states]);
    calls.leaves[i].data = leaf.data;
    calls.leaves[i].bytes = leaf.bytes;
  }
  void* const next_state = kAdvances ? DataOf(frame.rets.rets[0]) : nullptr;
  return Enqueue(states, ScalarOf<int64_t>(frame.attrs.attrs[0]), &calls, next_state).ok();
}

// What failed has done nothing, and is tried again by way of the bindings, which tell XLA why it fails.
XLA_FFI_Error* EnqueueOrSayWhyNot(XLA_FFI_CallFrame* frame) {
  return IsCall(*frame) && EnqueueFromFrame</*kAdvances=*/true>(*frame) ? nullptr : kEnqueue(frame);
}

XLA_FFI_Error* EnqueueUnorderedOrSayWhyNot(XLA_FFI_CallFrame* frame) {
  return IsCall(*frame) && EnqueueFromFrame</*kAdvances=*/false>(*frame) ? nullptr : kEnqueueUnordered(frame);
}

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_outfeed_enqueue", "Host", EnqueueOrSayWhyNot);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_outfeed_enqueue_unordered", "Host", EnqueueUnorderedOrSayWhyNot);

}  // namespace
}  // namespace tensorflow_ipu
