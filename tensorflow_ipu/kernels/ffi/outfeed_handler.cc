// The custom call of an outfeed enqueue: copies the program's buffers into the queue.
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "tensorflow_ipu/kernels/feeds/outfeeds.h"
#include "tensorflow_ipu/kernels/ffi/reply.h"
#include "tensorflow_ipu/kernels/ops/feed_state.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

ffi::Error Enqueue(int64_t layout, ffi::Buffer<ffi::S64> state, ffi::RemainingArgs element,
                   ffi::ResultBuffer<ffi::S64> next_state) {
  FeedState at;
  std::memcpy(&at, state.untyped_data(), sizeof(at));
  static thread_local core::Latest<core::Outfeed> latest;
  core::Outfeed* const outfeed = latest.Of(at.feed, [](int64_t number) { return Outfeeds().Find(number); });
  if (outfeed == nullptr) {
    return ToError(core::Outcome::NotFound(
        "The outfeed queue of this program was deleted. Keep the queue as long as programs use it."));
  }
  static thread_local std::vector<core::Leaf> leaves;  // Keeps its memory from call to call.
  leaves.clear();
  for (std::size_t i = 0; i < element.size(); ++i) {
    const auto leaf = element.get<ffi::AnyBuffer>(i);
    if (leaf.has_error()) return ToError({core::Code::kInternal, leaf.error().message()});
    leaves.push_back({leaf->untyped_data(), leaf->size_bytes()});
  }
  FeedState next = at;
  ++next.count;
  std::memcpy(next_state->untyped_data(), &next, sizeof(next));
  if (leaves.empty()) {  // Synthetic data.
    outfeed->Declare(layout);
    return ffi::Error::Success();
  }
  return ToError(outfeed->Append(at.lane, at.lanes, layout, leaves));
}

XLA_FFI_DEFINE_HANDLER(kEnqueue, Enqueue,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>("layout")
                           .Arg<ffi::Buffer<ffi::S64>>()    // state
                           .RemainingArgs()                 // element
                           .Ret<ffi::Buffer<ffi::S64>>());  // next_state
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_outfeed_enqueue", "Host", kEnqueue);

}  // namespace
}  // namespace tensorflow_ipu
