// Handlers that draw a seed, and that return the random stream of a replica.
#include <cstdint>
#include <cstring>
#include <memory>

#include "tensorflow_ipu/kernels/core/program_state.h"
#include "tensorflow_ipu/kernels/ffi/reply.h"
#include "tensorflow_ipu/kernels/replicas/random.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

ffi::Error DrawSeed(ffi::Buffer<ffi::S64> state, ffi::ResultBuffer<ffi::S64> next_state,
                    ffi::ResultBuffer<ffi::S64> seed) {
  const core::ProgramState at = core::StateAt(state.untyped_data());
  const std::shared_ptr<core::RandomStreams> streams = RandomStreams().Find(at.number);
  if (streams == nullptr) return ToError(RandomStreamsGone());
  const core::RandomSeed drawn = streams->Draw(at.lane);
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
  stream->typed_data()[0] = streams->StreamOf(at.lane);
  std::memcpy(next_state->untyped_data(), &at, sizeof(at));
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kDrawSeed, DrawSeed,
                       ffi::Ffi::Bind()
                           .Arg<ffi::Buffer<ffi::S64>>()    // state
                           .Ret<ffi::Buffer<ffi::S64>>()    // next_state
                           .Ret<ffi::Buffer<ffi::S64>>());  // seed
XLA_FFI_DEFINE_HANDLER(kTellStream, TellStream,
                       ffi::Ffi::Bind()
                           .Arg<ffi::Buffer<ffi::S64>>()    // state
                           .Ret<ffi::Buffer<ffi::S64>>()    // next_state
                           .Ret<ffi::Buffer<ffi::S64>>());  // stream
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_random_seed", "Host", kDrawSeed);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_random_stream", "Host", kTellStream);

}  // namespace
}  // namespace tensorflow_ipu
