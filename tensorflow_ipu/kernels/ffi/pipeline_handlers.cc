// Handlers that pipelines use.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "tensorflow_ipu/kernels/ffi/handler.h"
#include "tensorflow_ipu/kernels/host/threads.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

// The loop of a fence goes on once.
ffi::Error Fence(ffi::Buffer<ffi::S32> behind, ffi::Result<ffi::Buffer<ffi::PRED>> goes,
                 ffi::Result<ffi::Buffer<ffi::S32>> passed, bool whether) {
  *goes->typed_data() = whether;
  *passed->typed_data() = *behind.typed_data();
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kFence, Fence,
                       ffi::Ffi::Bind()
                           .Arg<ffi::Buffer<ffi::S32>>()   // behind
                           .Ret<ffi::Buffer<ffi::PRED>>()  // goes
                           .Ret<ffi::Buffer<ffi::S32>>()   // behind
                           .Attr<bool>("goes"));
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_fence", "Host", kFence);

ffi::Error CheckMicroBatches(ffi::Buffer<ffi::S64> count, ffi::ResultBuffer<ffi::S64> checked, int64_t multiple,
                             int64_t least, int64_t largest, std::string_view before, std::string_view behind) {
  const int64_t value = *count.typed_data();
  if (value < least || value % multiple != 0 || value > largest) {
    return ToError(core::Status::FailedPrecondition(std::string(before) + std::to_string(value) + std::string(behind)));
  }
  *checked->typed_data() = value;
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kCheckMicroBatches, CheckMicroBatches,
                       ffi::Ffi::Bind()
                           .Arg<ffi::Buffer<ffi::S64>>()  // count
                           .Ret<ffi::Buffer<ffi::S64>>()  // checked
                           .Attr<int64_t>("multiple")
                           .Attr<int64_t>("least")
                           .Attr<int64_t>("largest")
                           .Attr<std::string_view>("before")
                           .Attr<std::string_view>("behind"));
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_micro_batches", "Host", kCheckMicroBatches);

// XLA was told to alias results and operands. It copies an operand where the program has lost its memory.
ffi::Error JoinOrders(ffi::RemainingArgs states, ffi::RemainingRets joined) {
  for (std::size_t i = 0; i < states.size(); ++i) {
    const ffi::AnyBuffer state = *states.get<ffi::AnyBuffer>(i);
    const ffi::AnyBuffer result = **joined.get<ffi::AnyBuffer>(i);
    if (result.untyped_data() == state.untyped_data()) continue;
    std::memcpy(result.untyped_data(), state.untyped_data(), state.size_bytes());
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kJoinOrders, JoinOrders,
                       ffi::Ffi::Bind()
                           .RemainingArgs()  // states
                           .RemainingRets());
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_join_orders", "Host", kJoinOrders);

// The address of a place of `bytes` bytes; null if the ring has no such place.
char* Place(const ffi::AnyBuffer& ring, int32_t place, std::size_t bytes) {
  const int64_t depth = ring.dimensions().front();
  if (place < 0 || place >= depth) return nullptr;
  return static_cast<char*>(ring.untyped_data()) + static_cast<std::size_t>(place) * bytes;
}

ffi::Error RingZeros(ffi::RemainingRets rings) {
  for (std::size_t i = 0; i < rings.size(); ++i) {
    const ffi::AnyBuffer ring = **rings.get<ffi::AnyBuffer>(i);
    std::memset(ring.untyped_data(), 0, ring.size_bytes());
  }
  return ffi::Error::Success();
}

ffi::Error RingRead(ffi::AnyBuffer ring, ffi::Buffer<ffi::S32> place, ffi::Buffer<ffi::S32> /*behind*/,
                    ffi::Result<ffi::AnyBuffer> value) {
  const char* const from = Place(ring, *place.typed_data(), value->size_bytes());
  if (from == nullptr) return NoSuchPlace(*place.typed_data());
  std::memcpy(value->untyped_data(), from, value->size_bytes());
  return ffi::Error::Success();
}

// By several threads if that is faster. They only copy and do not wait.
void Copy(char* to, const void* from, std::size_t bytes, const ffi::ThreadPool& threads) {
  HostThreads::Of(threads.num_threads()).device()->memcpy(to, from, bytes);
}

// XLA was told to alias the result and the ring. It copies the ring where the program has lost its memory.
ffi::Error RingWrite(ffi::ThreadPool threads, ffi::AnyBuffer ring, ffi::AnyBuffer value, ffi::Buffer<ffi::S32> place,
                     ffi::Buffer<ffi::S32> /*behind*/, ffi::Result<ffi::AnyBuffer> written) {
  char* const to = Place(*written, *place.typed_data(), value.size_bytes());
  if (to == nullptr) return NoSuchPlace(*place.typed_data());
  if (written->untyped_data() != ring.untyped_data()) {
    std::memcpy(written->untyped_data(), ring.untyped_data(), ring.size_bytes());
  }
  Copy(to, value.untyped_data(), value.size_bytes(), threads);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kRingZeros, RingZeros, ffi::Ffi::Bind().RemainingRets());  // rings
XLA_FFI_DEFINE_HANDLER_AUTO(kRingRead, RingRead);
XLA_FFI_DEFINE_HANDLER(kRingWrite, RingWrite,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()        // threads
                           .Arg<ffi::AnyBuffer>()         // ring
                           .Arg<ffi::AnyBuffer>()         // value
                           .Arg<ffi::Buffer<ffi::S32>>()  // place
                           .Arg<ffi::Buffer<ffi::S32>>()  // behind
                           .Ret<ffi::AnyBuffer>());       // ring
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_ring_zeros", "Host", kRingZeros);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_ring_read", "Host", kRingRead);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_ring_write", "Host", kRingWrite);

using Numbers = ffi::Span<const int64_t>;

// See `IpuPipelineTurns`.
enum Wanted : int64_t { kFirst = 0, kBoth = 1, kFirstAlone = 2 };

ffi::Error PipelineTurns(ffi::Buffer<ffi::S32> base, ffi::Buffer<ffi::S32> count, ffi::RemainingRets results,
                         Numbers number_of, Numbers place_of, Numbers depths, Numbers first, Numbers second,
                         Numbers wanted) {
  const int64_t begin = *base.typed_data();
  const int64_t end = *count.typed_data();
  const auto there = [begin, end](int64_t of) { return begin + of >= 0 && begin + of < end; };
  std::size_t result = 0;
  const auto give = [&results, &result](int64_t value) {
    *(*results.get<ffi::Buffer<ffi::S32>>(result++))->typed_data() = static_cast<int32_t>(value);
  };
  for (const int64_t of : number_of) give(begin + of);
  for (std::size_t i = 0; i < place_of.size(); ++i) {
    const int64_t place = (begin + place_of[i]) % depths[i];
    give(place < 0 ? place + depths[i] : place);
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    *(*results.get<ffi::Buffer<ffi::PRED>>(result++))->typed_data() =
        there(first[i]) && (wanted[i] == kFirst || there(second[i]) == (wanted[i] == kBoth));
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kPipelineTurns, PipelineTurns,
                       ffi::Ffi::Bind()
                           .Arg<ffi::Buffer<ffi::S32>>()  // base
                           .Arg<ffi::Buffer<ffi::S32>>()  // count
                           .RemainingRets()               // numbers, places, runs
                           .Attr<Numbers>("number_of")
                           .Attr<Numbers>("place_of")
                           .Attr<Numbers>("depths")
                           .Attr<Numbers>("first")
                           .Attr<Numbers>("second")
                           .Attr<Numbers>("wanted"));
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_pipeline_turns", "Host", kPipelineTurns);

}  // namespace
}  // namespace tensorflow_ipu
