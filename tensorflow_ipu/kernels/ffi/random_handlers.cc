// Handlers of random streams.
#include <cstring>
#include <memory>

#include "tensorflow_ipu/kernels/ffi/binding.h"
#include "tensorflow_ipu/kernels/replicas/device_state.h"
#include "tensorflow_ipu/kernels/support/program_state.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

ffi::Error DrawSeed(StateBuffer state, ffi::Result<StateBuffer> next_state, ffi::ResultBuffer<ffi::S64> seed) {
  const core::ProgramState at = core::StateAt(state.untyped_data());
  const std::shared_ptr<core::RandomStreams> streams = RandomStreams().Find(at.number);
  if (streams == nullptr) return ToError(RandomStreamsGone());
  const core::RandomSeed drawn = streams->Draw(at.replica);
  seed->typed_data()[0] = drawn.key;
  seed->typed_data()[1] = drawn.count;
  core::Advance(state.untyped_data(), next_state->untyped_data());
  return ffi::Error::Success();
}

ffi::Error ReadStream(StateBuffer state, ffi::Result<StateBuffer> next_state, ffi::ResultBuffer<ffi::S64> stream) {
  const core::ProgramState at = core::StateAt(state.untyped_data());
  const std::shared_ptr<core::RandomStreams> streams = RandomStreams().Find(at.number);
  if (streams == nullptr) return ToError(RandomStreamsGone());
  stream->typed_data()[0] = streams->StreamOf(at.replica);
  std::memcpy(next_state->untyped_data(), &at, sizeof(at));
  return ffi::Error::Success();
}

IPU_HANDLER("ipu_random_seed", DrawSeed);
IPU_HANDLER("ipu_random_stream", ReadStream);

}  // namespace
}  // namespace tensorflow_ipu
