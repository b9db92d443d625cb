// The custom call of an infeed dequeue: copies the next element into the program's buffers.
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
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

// The usual number of tensors of an element needs no memory of its own.
using Destinations = absl::InlinedVector<Destination, 8>;

// Whether elements of the queue have the sizes that the program wants. All elements of a queue have the same (the pump
// sees to it), so that one has to be measured only where the queue or the program is another one than at the last call.
bool Fits(const InfeedQueue& queue, const InfeedElement& element, const Destinations& to) {
  static thread_local const InfeedQueue* known_queue = nullptr;
  static thread_local int64_t known_removals = 0;
  static thread_local absl::InlinedVector<std::size_t, 8> known;
  const auto same = [&](std::size_t i) { return known[i] == to[i].bytes; };
  const int64_t removals = core::removals.load(std::memory_order_acquire);
  bool fits = known_queue == &queue && known_removals == removals && known.size() == to.size();
  for (std::size_t i = 0; fits && i < to.size(); ++i) fits = same(i);
  if (fits) return true;
  known_queue = &queue;
  known_removals = removals;
  known.clear();
  for (const tensorflow::Tensor& tensor : element) known.push_back(tensor.TotalBytes());
  fits = known.size() == to.size();
  for (std::size_t i = 0; fits && i < to.size(); ++i) fits = same(i);
  return fits;
}

core::Outcome Copy(const InfeedQueue& queue, const InfeedElement& element, const Destinations& to) {
  if (!Fits(queue, element, to)) {
    return {core::Code::kInvalidArgument,
            "The program was traced for elements of other shapes or types than those of "
            "the infeed queue `" +
                queue.name() + "`. Trace it with that queue."};
  }
  for (std::size_t i = 0; i < to.size(); ++i) std::memcpy(to[i].data, element[i].data(), to[i].bytes);
  return core::Outcome::Ok();
}

// Why there is no queue of this number.
core::Outcome Missing(int64_t number) {
  if (const std::shared_ptr<Infeed> infeed = Infeeds().Find(number)) return NotStarted(infeed->name());
  return core::Outcome::NotFound(
      "The infeed queue of this program was deleted with its Python object. Keep the "
      "queue (or iterator) as long as programs use it.");
}

Reply Dequeue(ffi::Buffer<ffi::S64> state, ffi::ResultBuffer<ffi::S64> next_state, ffi::RemainingRets results) {
  FeedState at;
  std::memcpy(&at, state.untyped_data(), sizeof(at));
  static thread_local core::Latest<InfeedQueue> latest;
  InfeedQueue* const queue = latest.Of(at.feed, [](int64_t number) {
    const std::shared_ptr<Infeed> infeed = Infeeds().Find(number);
    return infeed == nullptr ? nullptr : infeed->queue();
  });
  if (queue == nullptr) return {Missing(at.feed), {}};

  Destinations to;
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
  if (took == InfeedQueue::Took::kElement) return {Copy(*queue, element, to), {}};

  // A wait here would hold a thread of XLA's pool, and with it perhaps the replica that must go on first.
  ffi::Promise promise;
  ffi::Future future(promise);
  queue->TakeLater(
      at.lane, at.lanes,
      [promise, to = std::move(to), queue = latest.object()](core::Outcome outcome, InfeedElement late) mutable {
        if (outcome.ok()) outcome = Copy(*queue, late, to);
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
