// Handler of infeed dequeues: copies the next element into the program's buffers, and advances the state.
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "tensorflow_ipu/kernels/core/of_thread.h"
#include "tensorflow_ipu/kernels/core/program_state.h"
#include "tensorflow_ipu/kernels/feeds/infeeds.h"
#include "tensorflow_ipu/kernels/ffi/frame.h"
#include "tensorflow_ipu/kernels/ffi/reply.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

// The cache of a thread between calls.
struct InfeedCalls {
  core::LookupCache<InfeedQueue> cache;
  InfeedElement element;  // Returns its memory to the pump at the next call.

  // The queue of the pass under way; null if there is none.
  InfeedQueue* Find(int64_t number) {
    return cache.Find(number, [](int64_t wanted) {
      const std::shared_ptr<Infeed> infeed = Infeeds().Find(wanted);
      return infeed == nullptr ? nullptr : infeed->queue();
    });
  }
};

// Result 0 is the state.
const void* TensorOf(const XLA_FFI_CallFrame& frame, std::size_t i) { return frame.rets.rets[i + 1]; }

bool Fits(const InfeedQueue& queue, const XLA_FFI_CallFrame& frame) {
  if (queue.sizes().size() != static_cast<std::size_t>(frame.rets.size) - 1) return false;
  for (std::size_t i = 0; i < queue.sizes().size(); ++i) {
    if (MemoryOf(TensorOf(frame, i)).bytes != queue.sizes()[i]) return false;
  }
  return true;
}

// Whether there was an element, or one came within a moment.
bool TakeOrSpin(const core::ProgramState& at, InfeedQueue* queue, InfeedElement* element) {
  core::Outcome why;
  InfeedQueue::Took took = queue->Take(at.lane, at.lanes, element, &why);
  if (took == InfeedQueue::Took::kNothing && queue->SpinForNext(at.lane)) {
    took = queue->Take(at.lane, at.lanes, element, &why);
  }
  return took == InfeedQueue::Took::kElement;
}

// Why there is no queue of this number.
core::Outcome Missing(int64_t number) {
  if (const std::shared_ptr<Infeed> infeed = Infeeds().Find(number)) return NotStarted(infeed->name());
  return core::Outcome::NotFound(
      "The infeed queue of this program was deleted with its Python object. Keep the "
      "queue (or iterator) as long as programs use it.");
}

// Has the queue copy the element when it comes. Waiting here would block a thread of XLA's pool, and perhaps the
// replica that must run first.
Reply CopyLater(const XLA_FFI_CallFrame& frame, const core::ProgramState& at, InfeedQueue* queue) {
  absl::InlinedVector<void*, 8> to;
  for (std::size_t i = 0; i < queue->sizes().size(); ++i) to.push_back(DataOf(TensorOf(frame, i)));
  ffi::Promise promise;
  ffi::Future future(promise);
  queue->TakeLater(
      at.lane, at.lanes,
      [promise, to = std::move(to), sizes = queue->sizes()](core::Outcome outcome, InfeedElement element) mutable {
        if (!outcome.ok()) return promise.SetError(ToError(std::move(outcome)));
        element.CopyTo(sizes, [&](std::size_t i) { return to[i]; });
        element.Drop();  // Before the rest of the program, which may run in SetAvailable.
        promise.SetAvailable();
      });
  return {core::Outcome::Ok(), std::move(future)};
}

Reply Dequeue(const XLA_FFI_CallFrame& frame) {
  const core::OrderedState states = core::OrderedStateAt(StatesOf(frame));
  const core::ProgramState& at = states.used;
  InfeedCalls& calls = core::OfThread<InfeedCalls>();
  InfeedQueue* const queue = calls.Find(at.number);
  if (queue == nullptr) return {Missing(at.number), {}};
  if (!Fits(*queue, frame)) {
    return {core::Outcome::InvalidArgument(
                "The program was traced for elements of other shapes or types than those of the infeed queue `" +
                queue->name() + "`. Trace it with that queue."),
            {}};
  }
  core::Advance(states.advanced, DataOf(frame.rets.rets[0]));
  const auto copy = [&](const InfeedElement& element) {
    element.CopyTo(queue->sizes(), [&](std::size_t i) { return DataOf(TensorOf(frame, i)); });
  };
  if (queue->small() && queue->TakeAtHand(at.lane, at.lanes, copy)) return {};
  if (TakeOrSpin(at, queue, &calls.element)) {
    copy(calls.element);
    calls.element.Drop();
    return {};
  }
  const std::shared_ptr<InfeedQueue> kept =
      calls.cache.object();  // Programs that run inside of this one look up others.
  return CopyLater(frame, at, kept.get());
}

// Arguments: the order, if there is one, and the state. Results: the next state, and the element.
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_infeed_dequeue", "Host", CalledWithFrame<Dequeue>);

}  // namespace
}  // namespace tensorflow_ipu
