// The custom call of an outfeed enqueue: copies the program's buffers into the queue.
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "tensorflow_ipu/kernels/feeds/outfeeds.h"
#include "tensorflow_ipu/kernels/ffi/frame.h"
#include "tensorflow_ipu/kernels/ffi/reply.h"
#include "tensorflow_ipu/kernels/ops/feed_state.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

core::Outfeed* Find(int64_t number) {
  static thread_local core::Latest<core::Outfeed> latest;
  return latest.Of(number, [](int64_t wanted) { return Outfeeds().Find(wanted); });
}

// The leaves of an element that is to be appended. Keeps its memory from call to call.
std::vector<core::Leaf>* EmptyLeaves() {
  static thread_local std::vector<core::Leaf> leaves;
  leaves.clear();
  return &leaves;
}

// Whether the call's element has been appended. Where it has not, Enqueue says why, or does what is to be done.
bool Append(const XLA_FFI_CallFrame& frame) {
  if (frame.args.size == 1 || frame.attrs.size != 1) return false;
  FeedState at;
  std::memcpy(&at, MemoryOf(frame.args.args[0]).data, sizeof(at));
  core::Outfeed* const outfeed = Find(at.feed);
  if (outfeed == nullptr) return false;
  std::vector<core::Leaf>* const leaves = EmptyLeaves();
  for (int64_t i = 1; i < frame.args.size; ++i) {
    const Memory leaf = MemoryOf(frame.args.args[i]);
    leaves->push_back({leaf.data, leaf.bytes});
  }
  if (!outfeed->Append(at.lane, at.lanes, IntegerOf(frame.attrs.attrs[0]), *leaves).ok()) return false;
  Advance(at, MemoryOf(frame.rets.rets[0]).data);
  return true;
}

ffi::Error Enqueue(int64_t layout, ffi::Buffer<ffi::S64> state, ffi::RemainingArgs element,
                   ffi::ResultBuffer<ffi::S64> next_state) {
  FeedState at;
  std::memcpy(&at, state.untyped_data(), sizeof(at));
  core::Outfeed* const outfeed = Find(at.feed);
  if (outfeed == nullptr) {
    return ToError(core::Outcome::NotFound(
        "The outfeed queue of this program was deleted. Keep the queue as long as programs use it."));
  }
  std::vector<core::Leaf>* const leaves = EmptyLeaves();
  for (std::size_t i = 0; i < element.size(); ++i) {
    const auto leaf = element.get<ffi::AnyBuffer>(i);
    if (leaf.has_error()) return ToError({core::Code::kInternal, leaf.error().message()});
    leaves->push_back({leaf->untyped_data(), leaf->size_bytes()});
  }
  Advance(at, next_state->untyped_data());
  if (leaves->empty()) {  // Synthetic data.
    outfeed->Declare(layout);
    return ffi::Error::Success();
  }
  return ToError(outfeed->Append(at.lane, at.lanes, layout, *leaves));
}

XLA_FFI_DEFINE_HANDLER(kEnqueue, Enqueue,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>("layout")
                           .Arg<ffi::Buffer<ffi::S64>>()    // state
                           .RemainingArgs()                 // element
                           .Ret<ffi::Buffer<ffi::S64>>());  // next_state

XLA_FFI_Error* AppendOrSayWhyNot(XLA_FFI_CallFrame* frame) {
  return IsCall(*frame) && Append(*frame) ? nullptr : kEnqueue(frame);
}

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_outfeed_enqueue", "Host", AppendOrSayWhyNot);

}  // namespace
}  // namespace tensorflow_ipu
