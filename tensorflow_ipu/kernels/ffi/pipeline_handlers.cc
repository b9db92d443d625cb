// The handlers of pipelines.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow_ipu/kernels/ffi/binding.h"
#include "tensorflow_ipu/kernels/host/threads.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

using Int32 = ffi::Buffer<ffi::S32>;
using Integers = ffi::Span<const int64_t>;

// Returns `whether` as the condition of a loop, and passes on the token. See `Step` in `lowering/control_flow_ops.cc`.
ffi::Error Fence(Int32 token, ffi::ResultBuffer<ffi::PRED> goes, ffi::Result<Int32> passed, bool whether) {
  *goes->typed_data() = whether;
  *passed->typed_data() = *token.typed_data();
  return ffi::Error::Success();
}

IPU_HANDLER("ipu_fence", Fence,
            ffi::Ffi::Bind().Arg<Int32>().Ret<ffi::Buffer<ffi::PRED>>().Ret<Int32>().Attr<bool>("goes"));

ffi::Error CheckMicroBatches(ffi::Buffer<ffi::S64> count, ffi::ResultBuffer<ffi::S64> checked,
                             ffi::Dictionary attributes) {
  const int64_t value = *count.typed_data();
  const auto number = [&](std::string_view name) { return *attributes.get<int64_t>(name); };
  if (value < number("least") || value % number("multiple") != 0 || value > number("largest")) {
    return ToError(
        absl::FailedPreconditionError(absl::StrCat(TextOf(attributes, "before"), value, TextOf(attributes, "after"))));
  }
  *checked->typed_data() = value;
  return ffi::Error::Success();
}

IPU_HANDLER("ipu_micro_batches", CheckMicroBatches);

// The call requests XLA to alias results and operands. If XLA does not, the operand is copied.
ffi::Error JoinOrders(ffi::RemainingArgs states, ffi::RemainingRets joined) {
  for (std::size_t i = 0; i < states.size(); ++i) {
    const ffi::AnyBuffer state = *states.get<ffi::AnyBuffer>(i);
    const ffi::AnyBuffer result = **joined.get<ffi::AnyBuffer>(i);
    if (result.untyped_data() == state.untyped_data()) continue;
    std::memcpy(result.untyped_data(), state.untyped_data(), state.size_bytes());
  }
  return ffi::Error::Success();
}

IPU_HANDLER("ipu_join_orders", JoinOrders, ffi::Ffi::Bind().RemainingArgs().RemainingRets());

// Returns the address of a slot of `bytes` bytes, or null if the stash buffer has no such slot.
char* SlotAt(const ffi::AnyBuffer& stash, int32_t slot, std::size_t bytes) {
  const int64_t depth = stash.dimensions().front();
  if (slot < 0 || slot >= depth) return nullptr;
  return static_cast<char*>(stash.untyped_data()) + static_cast<std::size_t>(slot) * bytes;
}

ffi::Error StashZeros(ffi::RemainingRets stashes) {
  for (std::size_t i = 0; i < stashes.size(); ++i) {
    const ffi::AnyBuffer stash = **stashes.get<ffi::AnyBuffer>(i);
    std::memset(stash.untyped_data(), 0, stash.size_bytes());
  }
  return ffi::Error::Success();
}

ffi::Error StashRead(ffi::AnyBuffer stash, Int32 slot, Int32 /*token*/, ffi::Result<ffi::AnyBuffer> value) {
  const char* const from = SlotAt(stash, *slot.typed_data(), value->size_bytes());
  if (from == nullptr) return NoSuchSlot(*slot.typed_data());
  std::memcpy(value->untyped_data(), from, value->size_bytes());
  return ffi::Error::Success();
}

// The call requests XLA to alias the result and the stash buffer. If XLA does not, the stash buffer is copied.
ffi::Error StashWrite(ffi::ThreadPool threads, ffi::AnyBuffer stash, ffi::AnyBuffer value, Int32 slot, Int32 /*token*/,
                      ffi::Result<ffi::AnyBuffer> written) {
  char* const to = SlotAt(*written, *slot.typed_data(), value.size_bytes());
  if (to == nullptr) return NoSuchSlot(*slot.typed_data());
  if (written->untyped_data() != stash.untyped_data()) {
    std::memcpy(written->untyped_data(), stash.untyped_data(), stash.size_bytes());
  }
  HostThreads::Of(threads.num_threads()).Copy(to, value.untyped_data(), value.size_bytes());
  return ffi::Error::Success();
}

IPU_HANDLER("ipu_stash_zeros", StashZeros, ffi::Ffi::Bind().RemainingRets());
IPU_HANDLER("ipu_stash_read", StashRead);
IPU_HANDLER("ipu_stash_write", StashWrite,
            ffi::Ffi::Bind()
                .Ctx<ffi::ThreadPool>()
                .Arg<ffi::AnyBuffer>()
                .Arg<ffi::AnyBuffer>()
                .Arg<Int32>()
                .Arg<Int32>()
                .Ret<ffi::AnyBuffer>());

// See `IpuLoopIndices`.
enum PredicateKind : int64_t { kFirst = 0, kBoth = 1, kFirstAlone = 2 };

ffi::Error LoopIndices(Int32 base, Int32 count, ffi::RemainingRets results, Integers number_of, Integers slot_of,
                       Integers depths, Integers first, Integers second, Integers kinds) {
  const int64_t begin = *base.typed_data();
  const int64_t end = *count.typed_data();
  const auto exists = [begin, end](int64_t offset) { return begin + offset >= 0 && begin + offset < end; };
  std::size_t result = 0;
  const auto add_result = [&results, &result](int64_t value) {
    *(*results.get<Int32>(result++))->typed_data() = static_cast<int32_t>(value);
  };
  for (const int64_t offset : number_of) add_result(begin + offset);
  for (std::size_t i = 0; i < slot_of.size(); ++i) {
    const int64_t slot = (begin + slot_of[i]) % depths[i];
    add_result(slot < 0 ? slot + depths[i] : slot);
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    *(*results.get<ffi::Buffer<ffi::PRED>>(result++))->typed_data() =
        exists(first[i]) && (kinds[i] == kFirst || exists(second[i]) == (kinds[i] == kBoth));
  }
  return ffi::Error::Success();
}

IPU_HANDLER("ipu_loop_indices", LoopIndices,
            ffi::Ffi::Bind()
                .Arg<Int32>()
                .Arg<Int32>()
                .RemainingRets()
                .Attr<Integers>("number_of")
                .Attr<Integers>("slot_of")
                .Attr<Integers>("depths")
                .Attr<Integers>("first")
                .Attr<Integers>("second")
                .Attr<Integers>("kinds"));

}  // namespace
}  // namespace tensorflow_ipu
