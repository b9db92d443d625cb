// Handler of outfeed enqueues: copies the program's buffers into the queue, and advances the state.
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

// The cache of a thread between calls.
struct OutfeedCalls {
  core::LookupCache<core::Outfeed> cache;
  std::vector<core::Leaf> leaves;
};

Reply Enqueue(const XLA_FFI_CallFrame& frame) {
  const core::OrderedState states = core::OrderedStateAt(StatesOf(frame));
  const core::ProgramState& at = states.used;
  const int64_t layout = ScalarOf<int64_t>(frame.attrs.attrs[0]);
  OutfeedCalls& calls = core::OfThread<OutfeedCalls>();
  core::Outfeed* const outfeed = calls.cache.Find(at.number, [](int64_t number) { return Outfeeds().Find(number); });
  if (outfeed == nullptr) {
    return {core::Outcome::NotFound(
                "The outfeed queue of this program was deleted. Keep the queue as long as programs use it."),
            {}};
  }
  core::Advance(states.advanced, DataOf(frame.rets.rets[0]));
  calls.leaves.resize(static_cast<std::size_t>(frame.args.size - states.states));
  for (std::size_t i = 0; i < calls.leaves.size(); ++i) {
    const Memory leaf = MemoryOf(frame.args.args[i + states.states]);
    calls.leaves[i].data = leaf.data;
    calls.leaves[i].bytes = leaf.bytes;
  }
  if (!calls.leaves.empty()) return {outfeed->Append(at.lane, at.lanes, layout, calls.leaves), {}};
  outfeed->Declare(layout);  // The data are synthetic.
  return {};
}

// Arguments: the order, if there is one, the state, and the element. Result: the next state.
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_outfeed_enqueue", "Host", CalledWithFrame<Enqueue>);

}  // namespace
}  // namespace tensorflow_ipu
