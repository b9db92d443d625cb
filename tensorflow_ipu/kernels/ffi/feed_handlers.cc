// Handlers of infeeds and outfeeds.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "tensorflow_ipu/kernels/feeds/feeds.h"
#include "tensorflow_ipu/kernels/ffi/binding.h"
#include "tensorflow_ipu/kernels/support/program_state.h"
#include "tensorflow_ipu/kernels/support/registry.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

// Infeed dequeue: copies the next element into the program's buffers, and advances the state.

// Each thread has one, for all of its calls.
struct InfeedCalls {
  core::LookupCache<InfeedQueue> cache;
  InfeedElement element;  // Its memory is returned to the pump at the next call.

  // Returns the queue of the active pass, or null if there is none.
  InfeedQueue* Find(int64_t number) { return cache.Find(number, QueueOfInfeed); }
};

using Destinations = absl::InlinedVector<void*, 8>;

// Collects the program's buffers in `to`. Returns false if the queue's elements have other sizes.
bool Fit(const InfeedQueue& queue, const ffi::RemainingRets& tensors, Destinations* to) {
  if (queue.sizes().size() != tensors.size()) return false;
  for (const std::size_t size : queue.sizes()) {
    const ffi::AnyBuffer tensor = **tensors.get<ffi::AnyBuffer>(to->size());
    if (tensor.size_bytes() != size) return false;
    to->push_back(tensor.untyped_data());
  }
  return true;
}

// Returns the error for a missing queue of this number.
absl::Status Missing(int64_t number) {
  if (const std::shared_ptr<Infeed> infeed = Infeeds().Find(number)) return NotStarted(infeed->name());
  return absl::NotFoundError(
      "The infeed queue of this program was deleted with its Python object. Keep the "
      "queue (or iterator) as long as programs use it.");
}

// Lets the queue copy the element when it arrives. Waiting here would block a thread of XLA's pool. The replica that
// must run first may need that thread.
ffi::Future CopyLater(Destinations to, const core::ProgramState& at, InfeedQueue* queue) {
  ffi::Promise promise;
  ffi::Future future(promise);
  queue->TakeLater(
      at.replica, at.replicas,
      [promise, to = std::move(to), sizes = queue->sizes()](absl::Status status, InfeedElement element) mutable {
        if (!status.ok()) return promise.SetError(ToError(std::move(status)));
        element.CopyTo(sizes, to.data());
        element.Drop();  // Drops it before the rest of the program, which may run in SetAvailable.
        promise.SetAvailable();
      });
  return future;
}

Answer Dequeue(ffi::RemainingArgs arguments, ffi::Result<StateBuffer> next_state, ffi::RemainingRets tensors) {
  const core::OrderedState states = core::OrderedStateAt(StatesOf(arguments));
  const core::ProgramState& at = states.used;
  InfeedCalls& calls = core::OfThread<InfeedCalls>();
  InfeedQueue* const queue = calls.Find(at.number);
  if (queue == nullptr) return ToError(Missing(at.number));
  Destinations to;
  if (!Fit(*queue, tensors, &to)) {
    return ffi::Error::InvalidArgument(
        "The program was traced for elements with other shapes or types than those of the infeed queue `" +
        queue->name() + "`. Trace it with that queue.");
  }
  core::Advance(states.advanced, next_state->untyped_data());
  const auto copy = [&](const InfeedElement& element) { element.CopyTo(queue->sizes(), to.data()); };
  if (queue->small() && queue->TakeAtHand(at.replica, at.replicas, copy)) return ffi::Error::Success();
  absl::Status why;
  if (queue->TakeOrSpin(at.replica, at.replicas, &calls.element, &why) == InfeedQueue::Took::kElement) {
    copy(calls.element);
    calls.element.Drop();
    return ffi::Error::Success();
  }
  // Keeps the queue alive: a nested program on this thread may replace it in the cache.
  const auto kept = calls.cache.object();
  return CopyLater(std::move(to), at, kept.get());
}

// Arguments: the order, if there is one, and the state. Results: the next state, and the element.
IPU_HANDLER("ipu_infeed_dequeue", Dequeue, BindStateAndValues());

// Outfeed enqueue: copies the program's buffers into the queue, and advances the state.

// Each thread has one, for all of its calls.
struct OutfeedCalls {
  core::LookupCache<core::Outfeed> cache;
  std::vector<core::Leaf> leaves;
};

ffi::Error Enqueue(ffi::RemainingArgs arguments, ffi::Result<StateBuffer> next_state, int64_t layout) {
  const core::OrderedState states = core::OrderedStateAt(StatesOf(arguments));
  const core::ProgramState& at = states.used;
  OutfeedCalls& calls = core::OfThread<OutfeedCalls>();
  core::Outfeed* const outfeed = calls.cache.Find(at.number, [](int64_t number) { return Outfeeds().Find(number); });
  if (outfeed == nullptr) return ToError(core::Outfeed::Deleted());
  core::Advance(states.advanced, next_state->untyped_data());
  calls.leaves.clear();
  for (std::size_t i = states.states; i < arguments.size(); ++i) {
    const ffi::AnyBuffer leaf = *arguments.get<ffi::AnyBuffer>(i);
    calls.leaves.push_back({leaf.untyped_data(), leaf.size_bytes()});
  }
  if (!calls.leaves.empty()) return ToError(outfeed->Append(at.replica, at.replicas, layout, calls.leaves));
  outfeed->Declare(layout);  // The data is synthetic.
  return ffi::Error::Success();
}

// Arguments: the order, if there is one, the state, and the element. Result: the next state.
IPU_HANDLER("ipu_outfeed_enqueue", Enqueue,
            ffi::Ffi::Bind().RemainingArgs().Ret<StateBuffer>().Attr<int64_t>("layout"));

}  // namespace
}  // namespace tensorflow_ipu
