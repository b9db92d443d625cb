// The custom call of an infeed dequeue: copies the next element into the program's buffers.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow_ipu/kernels/feeds/infeeds.h"
#include "tensorflow_ipu/kernels/ffi/reply.h"
#include "tensorflow_ipu/kernels/ops/feed_state.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

struct Destination {
  void* data;
  std::size_t bytes;
};

core::Outcome Copy(const std::string& name, const InfeedElement& element, const std::vector<Destination>& to) {
  bool fits = element.size() == to.size();
  for (std::size_t i = 0; fits && i < to.size(); ++i) fits = element[i].TotalBytes() == to[i].bytes;
  if (!fits) {
    return {core::Code::kInvalidArgument,
            "The program was traced for elements of other shapes or types than those of "
            "the infeed queue `" +
                name + "`. Trace it with that queue."};
  }
  for (std::size_t i = 0; i < to.size(); ++i) std::memcpy(to[i].data, element[i].data(), to[i].bytes);
  return core::Outcome::Ok();
}

Reply Dequeue(ffi::Buffer<ffi::S64> state, ffi::ResultBuffer<ffi::S64> next_state, ffi::RemainingRets results) {
  FeedState at;
  std::memcpy(&at, state.untyped_data(), sizeof(at));
  const std::shared_ptr<Infeed> infeed = Infeeds().Find(at.feed);
  if (infeed == nullptr) {
    return {core::Outcome::NotFound("The infeed queue of this program was deleted with its Python object. Keep the "
                                    "queue (or iterator) as long as programs use it."),
            {}};
  }
  const std::shared_ptr<InfeedQueue> queue = infeed->queue();
  if (queue == nullptr) return {NotStarted(infeed->name()), {}};

  std::vector<Destination> to;
  to.reserve(results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    auto result = results.get<ffi::AnyBuffer>(i);
    if (result.has_error()) return {{core::Code::kInternal, std::string(result.error().message())}, {}};
    to.push_back({(*result)->untyped_data(), (*result)->size_bytes()});
  }
  FeedState next = at;
  ++next.count;
  std::memcpy(next_state->untyped_data(), &next, sizeof(next));

  InfeedElement element;
  core::Outcome why;
  InfeedQueue::Took took = queue->Take(at.lane, at.lanes, &element, &why);
  if (took == InfeedQueue::Took::kNothing && queue->Linger(at.lane)) {
    took = queue->Take(at.lane, at.lanes, &element, &why);
  }
  if (took == InfeedQueue::Took::kFailed) return {std::move(why), {}};
  if (took == InfeedQueue::Took::kElement) return {Copy(queue->name(), element, to), {}};

  // A wait here would hold a thread of XLA's pool, and with it perhaps the replica that must go on first.
  ffi::Promise promise;
  ffi::Future future(promise);
  queue->TakeLater(at.lane, at.lanes,
                   [promise, to = std::move(to), queue](core::Outcome outcome, InfeedElement late) mutable {
                     if (outcome.ok()) outcome = Copy(queue->name(), late, to);
                     late.clear();  // Before the rest of the program, which may run in the next line.
                     if (outcome.ok()) {
                       promise.SetAvailable();
                     } else {
                       promise.SetError(ToError(std::move(outcome)));
                     }
                   });
  return {core::Outcome::Ok(), std::move(future)};
}

XLA_FFI_DEFINE_HANDLER(kDequeue, Dequeue,
                       ffi::Ffi::Bind()
                           .Arg<ffi::Buffer<ffi::S64>>()  // state
                           .Ret<ffi::Buffer<ffi::S64>>()  // next_state
                           .RemainingRets());             // results
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_infeed_dequeue", "Host", kDequeue);

}  // namespace
}  // namespace tensorflow_ipu
