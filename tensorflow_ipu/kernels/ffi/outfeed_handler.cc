// The custom call of an outfeed enqueue: copies the program's buffers into the queue.
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

// Without leaves, data are synthetic: there is no element.
core::Outcome Enqueue(const core::OrderedState& states, int64_t layout, OutfeedCalls* calls, void* next_state) {
  const core::ProgramState& at = states.used;
  core::Outfeed* const outfeed = calls->cache.Find(at.number, [](int64_t number) { return Outfeeds().Find(number); });
  if (outfeed == nullptr) {
    return core::Outcome::NotFound(
        "The outfeed queue of this program was deleted. Keep the queue as long as programs use it.");
  }
  core::Advance(states.advanced, next_state);
  if (!calls->leaves.empty()) return outfeed->Append(at.lane, at.lanes, layout, calls->leaves);
  outfeed->Declare(layout);
  return core::Outcome::Ok();
}

ffi::Error EnqueueBound(int64_t layout, ffi::RemainingArgs arguments, ffi::ResultBuffer<ffi::S64> next_state) {
  const core::OrderedState states = core::OrderedStateAt(StatesOf(arguments));
  OutfeedCalls& calls = core::OfThread<OutfeedCalls>();
  calls.leaves.resize(arguments.size() - states.states);
  for (std::size_t i = 0; i < calls.leaves.size(); ++i) {
    const auto leaf = arguments.get<ffi::AnyBuffer>(i + states.states);
    if (leaf.has_error()) return ToError({core::Code::kInternal, leaf.error().message()});
    calls.leaves[i] = {leaf->untyped_data(), leaf->size_bytes()};
  }
  return ToError(Enqueue(states, layout, &calls, next_state->untyped_data()));
}

XLA_FFI_DEFINE_HANDLER(kEnqueue, EnqueueBound,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>("layout")
                           .RemainingArgs()                 // the order, if there is one, the state, and the element
                           .Ret<ffi::Buffer<ffi::S64>>());  // next_state

bool EnqueueFromFrame(const XLA_FFI_CallFrame& frame) {
  const core::OrderedState states = core::OrderedStateAt(StatesOf(frame));
  OutfeedCalls& calls = core::OfThread<OutfeedCalls>();
  calls.leaves.resize(static_cast<std::size_t>(frame.args.size - states.states));
  for (std::size_t i = 0; i < calls.leaves.size(); ++i) {
    const Memory leaf = MemoryOf(frame.args.args[i + states.states]);
    calls.leaves[i].data = leaf.data;
    calls.leaves[i].bytes = leaf.bytes;
  }
  return Enqueue(states, ScalarOf<int64_t>(frame.attrs.attrs[0]), &calls, DataOf(frame.rets.rets[0])).ok();
}

// What failed has done nothing, and is tried again by way of the bindings, which tell XLA why it fails.
XLA_FFI_Error* EnqueueOrSayWhyNot(XLA_FFI_CallFrame* frame) {
  return IsCall(*frame) && EnqueueFromFrame(*frame) ? nullptr : kEnqueue(frame);
}

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_outfeed_enqueue", "Host", EnqueueOrSayWhyNot);

}  // namespace
}  // namespace tensorflow_ipu
