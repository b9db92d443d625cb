// The custom calls of an infeed dequeue: copy the next element into the program's buffers. One advances a state, ahead
// of the element in its results. The other one is of programs whose queues are used in order as it is, and takes the
// state of its queue, and what it has to come after (see lowering/implied_order.h).
#include <cstddef>
#include <memory>
#include <string>
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

// What a thread keeps from call to call.
struct InfeedCalls {
  core::LookupCache<InfeedQueue> cache;
  InfeedElement element;  // Gives its memory back to the pump at the next call.

  // The queue of the pass under way; null where there is none.
  InfeedQueue* Find(int64_t number) {
    return cache.Find(number, [](int64_t wanted) {
      const std::shared_ptr<Infeed> infeed = Infeeds().Find(wanted);
      return infeed == nullptr ? nullptr : infeed->queue();
    });
  }
};

// Whether the elements of the queue have the sizes that the program wants, whose tensor `i` is `wanted(i)`.
template <typename Wanted>
bool Fits(const InfeedQueue& queue, std::size_t count, Wanted wanted) {
  if (queue.sizes().size() != count) return false;
  for (std::size_t i = 0; i < count; ++i) {
    if (wanted(i).bytes != queue.sizes()[i]) return false;
  }
  return true;
}

// Whether there was an element, or came within a moment.
bool TakeOrSpin(const core::ProgramState& at, InfeedQueue* queue, InfeedElement* element) {
  core::Outcome why;
  InfeedQueue::Took took = queue->Take(at.lane, at.lanes, element, &why);
  if (took == InfeedQueue::Took::kNothing && queue->SpinForNext(at.lane)) {
    took = queue->Take(at.lane, at.lanes, element, &why);
  }
  return took == InfeedQueue::Took::kElement;
}

// Whether the element that a call wants was ready, and has been copied to where it wants it. All else is for Dequeue.
template <bool kAdvances>
bool TakeReady(const XLA_FFI_CallFrame& frame) {
  constexpr std::size_t kStates = kAdvances ? 1 : 0;
  const core::OrderedState states = core::OrderedStateAt(StatesOf(frame));
  const core::ProgramState& at = states.used;
  InfeedCalls& calls = core::OfThread<InfeedCalls>();
  InfeedQueue* const queue = calls.Find(at.number);
  if (queue == nullptr) return false;
  const auto to = [&](std::size_t i) { return MemoryOf(frame.rets.rets[i + kStates]); };
  if (!Fits(*queue, static_cast<std::size_t>(frame.rets.size) - kStates, to)) return false;
  const auto copy = [&](const InfeedElement& element) {
    element.CopyTo(queue->sizes(), [&](std::size_t i) { return DataOf(frame.rets.rets[i + kStates]); });
  };
  if (!queue->small() || !queue->TakeAtHand(at.lane, at.lanes, copy)) {
    if (!TakeOrSpin(at, queue, &calls.element)) return false;
    copy(calls.element);
    calls.element.Drop();
  }
  if constexpr (kAdvances) core::Advance(states.advanced, DataOf(frame.rets.rets[0]));
  return true;
}

// Why there is no queue of this number.
core::Outcome Missing(int64_t number) {
  if (const std::shared_ptr<Infeed> infeed = Infeeds().Find(number)) return NotStarted(infeed->name());
  return core::Outcome::NotFound(
      "The infeed queue of this program was deleted with its Python object. Keep the "
      "queue (or iterator) as long as programs use it.");
}

ffi::Future Failed(core::Outcome why) {
  ffi::Promise promise;
  ffi::Future future(promise);
  promise.SetError(ToError(std::move(why)));
  return future;
}

// Without a place for the next state, the state stays what it is.
ffi::Future Dequeue(const core::OrderedState& states, void* next_state, ffi::RemainingRets results) {
  const core::ProgramState& at = states.used;
  InfeedCalls& calls = core::OfThread<InfeedCalls>();
  if (calls.Find(at.number) == nullptr) return Failed(Missing(at.number));
  const std::shared_ptr<InfeedQueue> queue = calls.cache.object();  // Programs that run inside of this look up others.
  absl::InlinedVector<Memory, 8> to;  // The usual number of tensors needs no memory of its own.
  for (std::size_t i = 0; i < results.size(); ++i) {
    auto result = results.get<ffi::AnyBuffer>(i);
    if (result.has_error()) return Failed({core::Code::kInternal, std::string(result.error().message())});
    to.push_back({(*result)->untyped_data(), (*result)->size_bytes()});
  }
  if (!Fits(*queue, to.size(), [&](std::size_t i) { return to[i]; })) {
    return Failed({core::Code::kInvalidArgument,
                   "The program was traced for elements of other shapes or types than those of the infeed queue `" +
                       queue->name() + "`. Trace it with that queue."});
  }
  if (next_state != nullptr) core::Advance(states.advanced, next_state);
  // A wait here would hold a thread of XLA's pool, and with it perhaps the replica that must go on first.
  ffi::Promise promise;
  ffi::Future future(promise);
  queue->TakeLater(
      at.lane, at.lanes,
      [promise, to = std::move(to), sizes = queue->sizes()](core::Outcome outcome, InfeedElement element) mutable {
        if (!outcome.ok()) return promise.SetError(ToError(std::move(outcome)));
        element.CopyTo(sizes, [&](std::size_t i) { return to[i].data; });
        element.Drop();  // Before the rest of the program, which may run in the next line.
        promise.SetAvailable();
      });
  return future;
}

ffi::Future DequeueBound(ffi::RemainingArgs arguments, ffi::ResultBuffer<ffi::S64> next_state,
                         ffi::RemainingRets results) {
  return Dequeue(core::OrderedStateAt(StatesOf(arguments)), next_state->untyped_data(), results);
}

ffi::Future DequeueUnorderedBound(ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  return Dequeue(core::OrderedStateAt(StatesOf(arguments)), /*next_state=*/nullptr, results);
}

XLA_FFI_DEFINE_HANDLER(kDequeue, DequeueBound,
                       ffi::Ffi::Bind()
                           .RemainingArgs()               // the order, if there is one, and the state
                           .Ret<ffi::Buffer<ffi::S64>>()  // next_state
                           .RemainingRets());             // results

XLA_FFI_DEFINE_HANDLER(kDequeueUnordered, DequeueUnorderedBound,
                       ffi::Ffi::Bind()
                           .RemainingArgs()    // the state, and what the call comes after, if there is such
                           .RemainingRets());  // results

XLA_FFI_Error* TakeOrWait(XLA_FFI_CallFrame* frame) {
  return IsCall(*frame) && TakeReady</*kAdvances=*/true>(*frame) ? nullptr : kDequeue(frame);
}

XLA_FFI_Error* TakeOrWaitUnordered(XLA_FFI_CallFrame* frame) {
  return IsCall(*frame) && TakeReady</*kAdvances=*/false>(*frame) ? nullptr : kDequeueUnordered(frame);
}

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_infeed_dequeue", "Host", TakeOrWait);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_infeed_dequeue_unordered", "Host", TakeOrWaitUnordered);

}  // namespace
}  // namespace tensorflow_ipu
