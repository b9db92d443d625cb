// The custom call of an outfeed enqueue: copies the program's buffers into the queue.
#include <cstdint>
#include <memory>
#include <vector>

#include "tensorflow_ipu/kernels/core/program_state.h"
#include "tensorflow_ipu/kernels/feeds/outfeeds.h"
#include "tensorflow_ipu/kernels/ffi/frame.h"
#include "tensorflow_ipu/kernels/ffi/reply.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

// The leaves of an element that is to be appended, to be filled in. Keeps its memory from call to call.
std::vector<core::Leaf>* Leaves(std::size_t count) {
  static thread_local std::vector<core::Leaf> leaves;
  leaves.resize(count);
  return &leaves;
}

// Without leaves, data are synthetic: there is no element.
core::Outcome Enqueue(const core::OrderedState& states, int64_t layout, const std::vector<core::Leaf>& leaves,
                      void* next_state) {
  const core::ProgramState& at = states.used;
  static thread_local core::LookupCache<core::Outfeed> cache;
  core::Outfeed* const outfeed = cache.Find(at.number, [](int64_t number) { return Outfeeds().Find(number); });
  if (outfeed == nullptr) {
    return core::Outcome::NotFound(
        "The outfeed queue of this program was deleted. Keep the queue as long as programs use it.");
  }
  core::Advance(states.advanced, next_state);
  if (!leaves.empty()) return outfeed->Append(at.lane, at.lanes, layout, leaves);
  outfeed->Declare(layout);
  return core::Outcome::Ok();
}

ffi::Error EnqueueBound(int64_t layout, ffi::RemainingArgs arguments, ffi::ResultBuffer<ffi::S64> next_state) {
  const core::OrderedState states = core::OrderedStateAt(StatesOf(arguments));
  std::vector<core::Leaf>* const leaves = Leaves(arguments.size() - states.states);
  for (std::size_t i = 0; i < leaves->size(); ++i) {
    const auto leaf = arguments.get<ffi::AnyBuffer>(i + states.states);
    if (leaf.has_error()) return ToError({core::Code::kInternal, leaf.error().message()});
    (*leaves)[i] = {leaf->untyped_data(), leaf->size_bytes()};
  }
  return ToError(Enqueue(states, layout, *leaves, next_state->untyped_data()));
}

XLA_FFI_DEFINE_HANDLER(kEnqueue, EnqueueBound,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>("layout")
                           .RemainingArgs()                 // the order, if there is one, the state, and the element
                           .Ret<ffi::Buffer<ffi::S64>>());  // next_state

bool EnqueueFromFrame(const XLA_FFI_CallFrame& frame) {
  const core::OrderedState states = core::OrderedStateAt(StatesOf(frame));
  std::vector<core::Leaf>* const leaves = Leaves(static_cast<std::size_t>(frame.args.size - states.states));
  for (std::size_t i = 0; i < leaves->size(); ++i) {
    const Memory leaf = MemoryOf(frame.args.args[i + states.states]);
    (*leaves)[i].data = leaf.data;
    (*leaves)[i].bytes = leaf.bytes;
  }
  return Enqueue(states, ScalarOf<int64_t>(frame.attrs.attrs[0]), *leaves, MemoryOf(frame.rets.rets[0]).data).ok();
}

// What failed has done nothing, and is tried again by way of the bindings, which tell XLA why it fails.
XLA_FFI_Error* EnqueueOrSayWhyNot(XLA_FFI_CallFrame* frame) {
  return IsCall(*frame) && EnqueueFromFrame(*frame) ? nullptr : kEnqueue(frame);
}

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_outfeed_enqueue", "Host", EnqueueOrSayWhyNot);

}  // namespace
}  // namespace tensorflow_ipu
