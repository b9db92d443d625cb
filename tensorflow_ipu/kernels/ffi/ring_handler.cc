// Handlers that make rings, and that read and write one place of them.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tensorflow_ipu/kernels/ffi/reply.h"
#include "tensorflow_ipu/kernels/ffi/ring_places.h"
#include "tensorflow_ipu/kernels/host/threads.h"
#include "xla/ffi/api/ffi.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

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
XLA_FFI_DEFINE_HANDLER(kRingRead, RingRead,
                       ffi::Ffi::Bind()
                           .Arg<ffi::AnyBuffer>()         // ring
                           .Arg<ffi::Buffer<ffi::S32>>()  // place
                           .Arg<ffi::Buffer<ffi::S32>>()  // behind
                           .Ret<ffi::AnyBuffer>());       // value
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

}  // namespace
}  // namespace tensorflow_ipu
