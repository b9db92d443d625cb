// Handler that starts a program with the machine's arithmetic.
#include <cstdint>
#include <memory>
#include <string_view>

#include "tensorflow_ipu/kernels/core/program_state.h"
#include "tensorflow_ipu/kernels/ffi/reply.h"
#include "tensorflow_ipu/kernels/replicas/random.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

using Word = ffi::ResultBuffer<ffi::U32>;

void Write(uint64_t key, Word first, Word second) {
  first->typed_data()[0] = static_cast<uint32_t>(key >> 32);
  second->typed_data()[0] = static_cast<uint32_t>(key);
}

ffi::Error Begin(std::string_view, ffi::Buffer<ffi::S64> state, ffi::ResultBuffer<ffi::S64> next_state, Word first,
                 Word second, Word shared_first, Word shared_second) {
  const core::ProgramState at = core::StateAt(state.untyped_data());
  const std::shared_ptr<core::RandomStreams> streams = RandomStreams().Find(at.number);
  if (streams == nullptr) return ToError(RandomStreamsGone());
  uint64_t shared = 0;
  Write(streams->DrawRounding(at.lane, &shared), first, second);
  Write(shared, shared_first, shared_second);
  core::Advance(state.untyped_data(), next_state->untyped_data());
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kBegin, Begin,
                       ffi::Ffi::Bind()
                           .Attr<std::string_view>("options")
                           .Arg<ffi::Buffer<ffi::S64>>()    // state
                           .Ret<ffi::Buffer<ffi::S64>>()    // next_state
                           .Ret<ffi::Buffer<ffi::U32>>()    // first
                           .Ret<ffi::Buffer<ffi::U32>>()    // second
                           .Ret<ffi::Buffer<ffi::U32>>()    // shared_first
                           .Ret<ffi::Buffer<ffi::U32>>());  // shared_second
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_half_precision", "Host", kBegin);

}  // namespace
}  // namespace tensorflow_ipu
