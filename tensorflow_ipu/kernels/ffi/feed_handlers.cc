// Handlers of feeds, collectives and random streams.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "tensorflow_ipu/kernels/collectives/call_sites.h"
#include "tensorflow_ipu/kernels/core/program_state.h"
#include "tensorflow_ipu/kernels/core/registry.h"
#include "tensorflow_ipu/kernels/feeds/feeds.h"
#include "tensorflow_ipu/kernels/ffi/handler.h"
#include "tensorflow_ipu/kernels/replicas/device_state.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

// Infeed dequeue: copies the next element into the program's buffers, and advances the state.

// The cache of a thread between calls.
struct InfeedCalls {
  core::LookupCache<InfeedQueue> cache;
  InfeedElement element;  // Returns its memory to the pump at the next call.

  // The queue of the pass under way; null if there is none.
  InfeedQueue* Find(int64_t number) { return cache.Find(number, QueueOfInfeed); }
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

// Why there is no queue of this number.
core::Status Missing(int64_t number) {
  if (const std::shared_ptr<Infeed> infeed = Infeeds().Find(number)) return NotStarted(infeed->name());
  return core::Status::NotFound(
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
      at.replica, at.replicas,
      [promise, to = std::move(to), sizes = queue->sizes()](core::Status status, InfeedElement element) mutable {
        if (!status.ok()) return promise.SetError(ToError(std::move(status)));
        element.CopyTo(sizes, [&](std::size_t i) { return to[i]; });
        element.Drop();  // Before the rest of the program, which may run in SetAvailable.
        promise.SetAvailable();
      });
  return {core::Status::Ok(), std::move(future)};
}

Reply Dequeue(const XLA_FFI_CallFrame& frame) {
  const core::OrderedState states = core::OrderedStateAt(StatesOf(frame));
  const core::ProgramState& at = states.used;
  InfeedCalls& calls = core::OfThread<InfeedCalls>();
  InfeedQueue* const queue = calls.Find(at.number);
  if (queue == nullptr) return {Missing(at.number), {}};
  if (!Fits(*queue, frame)) {
    return {core::Status::InvalidArgument(
                "The program was traced for elements of other shapes or types than those of the infeed queue `" +
                queue->name() + "`. Trace it with that queue."),
            {}};
  }
  core::Advance(states.advanced, DataOf(frame.rets.rets[0]));
  const auto copy = [&](const InfeedElement& element) {
    element.CopyTo(queue->sizes(), [&](std::size_t i) { return DataOf(TensorOf(frame, i)); });
  };
  if (queue->small() && queue->TakeAtHand(at.replica, at.replicas, copy)) return {};
  core::Status why;
  if (queue->TakeOrSpin(at.replica, at.replicas, &calls.element, &why) == InfeedQueue::Took::kElement) {
    copy(calls.element);
    calls.element.Drop();
    return {};
  }
  const auto kept = calls.cache.object();  // Programs that run inside of this one look up others.
  return CopyLater(frame, at, kept.get());
}

// Arguments: the order, if there is one, and the state. Results: the next state, and the element.
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_infeed_dequeue", "Host", CalledWithFrame<Dequeue>);

// Outfeed enqueue: copies the program's buffers into the queue, and advances the state.

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
  if (outfeed == nullptr) return {core::Outfeed::Deleted(), {}};
  core::Advance(states.advanced, DataOf(frame.rets.rets[0]));
  calls.leaves.resize(static_cast<std::size_t>(frame.args.size - states.states));
  for (std::size_t i = 0; i < calls.leaves.size(); ++i) {
    const Memory leaf = MemoryOf(frame.args.args[i + states.states]);
    calls.leaves[i].data = leaf.data;
    calls.leaves[i].bytes = leaf.bytes;
  }
  if (!calls.leaves.empty()) return {outfeed->Append(at.replica, at.replicas, layout, calls.leaves), {}};
  outfeed->Declare(layout);  // The data are synthetic.
  return {};
}

// Arguments: the order, if there is one, the state, and the element. Result: the next state.
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_outfeed_enqueue", "Host", CalledWithFrame<Enqueue>);

// Collectives: pass the replica's buffers to the call site where the replicas meet.

// XLA orders the attributes by their names.
core::Collective CollectiveOf(const XLA_FFI_Attrs& attributes) {
  const int64_t group_size = ScalarOf<int64_t>(attributes.attrs[0]);
  const auto kind = static_cast<core::Kind>(ScalarOf<int64_t>(attributes.attrs[1]));
  const bool orthogonal = ScalarOf<bool>(attributes.attrs[2]);
  const auto reduction = static_cast<core::Reduction>(ScalarOf<int64_t>(attributes.attrs[3]));
  const int64_t root = ScalarOf<int64_t>(attributes.attrs[4]);
  return {kind, reduction, {group_size, orthogonal}, root};
}

core::Contribution Gather(const XLA_FFI_CallFrame& frame, int64_t states) {
  core::Contribution contribution(static_cast<std::size_t>(frame.rets.size - 1));  // Without the state.
  for (std::size_t i = 0; i < contribution.size(); ++i) {
    const auto& value = *static_cast<const XLA_FFI_Buffer*>(frame.args.args[static_cast<std::size_t>(states) + i]);
    const auto& result = *static_cast<const XLA_FFI_Buffer*>(frame.rets.rets[1 + i]);
    contribution[i] = {static_cast<core::DataType>(value.dtype), static_cast<const std::byte*>(value.data),
                       static_cast<std::byte*>(result.data), ElementsOf(value), ElementsOf(result)};
  }
  return contribution;
}

Reply Meet(const XLA_FFI_CallFrame& frame) {
  const core::OrderedState states = core::OrderedStateAt(StatesOf(frame));
  const core::ProgramState& at = states.used;
  static thread_local core::LookupCache<core::CallSite> cache;
  cache.Find(at.number, [](int64_t number) { return CallSites().Find(number); });
  const std::shared_ptr<core::CallSite> site = cache.object();  // Programs that run inside of this one look up others.
  if (site == nullptr) {
    return {core::Status::NotFound("A collective of this program was deleted with the function that was traced. Keep "
                                   "the `tf.function` as long as its programs run."),
            {}};
  }
  core::Advance(states.advanced, DataOf(frame.rets.rets[0]));
  const core::Collective collective = CollectiveOf(frame.attrs);

  // The last replica of a group to arrive, or a single one, gets its answer at once; the others by the future.
  ffi::Promise promise;
  std::optional<ffi::Future> future(promise);
  auto called = [promise](core::Status status) mutable {
    if (status.ok()) return promise.SetAvailable();
    promise.SetError(ToError(std::move(status)));
  };
  std::optional<core::Status> answer =
      site->Arrive(at.replica, at.replicas, collective, Gather(frame, states.states), std::move(called));
  if (answer.has_value()) return {std::move(*answer), {}};
  return {core::Status::Ok(), std::move(future)};
}

// Arguments: the order, if there is one, the state, and the values. Results: the next state, and those of the values.
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_collective", "Host", CalledWithFrame<Meet>);

ffi::Error DrawSeed(ffi::Buffer<ffi::S64> state, ffi::ResultBuffer<ffi::S64> next_state,
                    ffi::ResultBuffer<ffi::S64> seed) {
  const core::ProgramState at = core::StateAt(state.untyped_data());
  const std::shared_ptr<core::RandomStreams> streams = RandomStreams().Find(at.number);
  if (streams == nullptr) return ToError(RandomStreamsGone());
  const core::RandomSeed drawn = streams->Draw(at.replica);
  seed->typed_data()[0] = drawn.key;
  seed->typed_data()[1] = drawn.count;
  core::Advance(state.untyped_data(), next_state->untyped_data());
  return ffi::Error::Success();
}

ffi::Error TellStream(ffi::Buffer<ffi::S64> state, ffi::ResultBuffer<ffi::S64> next_state,
                      ffi::ResultBuffer<ffi::S64> stream) {
  const core::ProgramState at = core::StateAt(state.untyped_data());
  const std::shared_ptr<core::RandomStreams> streams = RandomStreams().Find(at.number);
  if (streams == nullptr) return ToError(RandomStreamsGone());
  stream->typed_data()[0] = streams->StreamOf(at.replica);
  std::memcpy(next_state->untyped_data(), &at, sizeof(at));
  return ffi::Error::Success();
}

IPU_HANDLER("ipu_random_seed", DrawSeed);
IPU_HANDLER("ipu_random_stream", TellStream);

ffi::Error RefuseOtherCall(ffi::RemainingArgs /*arguments*/, ffi::RemainingRets /*results*/) {
  return {ffi::ErrorCode::kInternal, "A custom call was made in a way that this version of XLA's API does not have."};
}

IPU_DEFINE_HANDLER(kQuestion, kExecute, RefuseOtherCall);

}  // namespace

XLA_FFI_Error* AnswerQuestion(XLA_FFI_CallFrame* frame) { return kQuestion(frame); }

}  // namespace tensorflow_ipu
