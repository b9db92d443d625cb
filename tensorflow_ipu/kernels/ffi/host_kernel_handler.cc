// Handler of host kernels. Its arguments are the kernel's inputs, followed by the place of each input that is in a
// ring.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "tensorflow_ipu/kernels/core/metrics.h"
#include "tensorflow_ipu/kernels/ffi/reply.h"
#include "tensorflow_ipu/kernels/ffi/ring_places.h"
#include "tensorflow_ipu/kernels/host/kernel.h"
#include "tensorflow_ipu/kernels/host/lines.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

using Numbers = ffi::Span<const int64_t>;

// The state that XLA keeps for a call in a program.
struct KernelOfCall {
  static ffi::TypeId id;
  std::shared_ptr<const HostKernel> kernel;
  std::atomic<int64_t>* calls;  // Counts the calls of all kernels of its type.
};
ffi::TypeId KernelOfCall::id = {};

ffi::Error Failed(const absl::Status& status, std::string_view node, std::string_view name) {
  return ToError(
      {static_cast<core::Code>(status.code()), absl::StrCat(name, LinesOf(node, name), ": ", status.message())});
}

ffi::ErrorOr<std::unique_ptr<KernelOfCall>> Instantiate(std::string_view node, std::string_view name, Numbers) {
  absl::StatusOr<std::shared_ptr<const HostKernel>> kernel = HostKernel::Of(std::string(node));
  if (!kernel.ok()) return ffi::Unexpected(Failed(kernel.status(), node, name));
  std::atomic<int64_t>* const calls = core::Metrics::Global().host_kernel_calls.Of((*kernel)->type());
  return std::make_unique<KernelOfCall>(KernelOfCall{*std::move(kernel), calls});
}

HostBuffer BufferOf(const ffi::AnyBuffer& buffer) {
  const auto dimensions = buffer.dimensions();
  return {buffer.untyped_data(), buffer.size_bytes(), {dimensions.begin(), dimensions.size()}};
}

// A place of a ring as a buffer: without the first dimension.
ffi::ErrorOr<HostBuffer> InRing(const HostBuffer& ring, int32_t place) {
  const int64_t depth = ring.dimensions.front();
  if (place < 0 || place >= depth) return ffi::Unexpected(NoSuchPlace(place));
  const std::size_t bytes = ring.bytes / static_cast<std::size_t>(depth);
  return HostBuffer{static_cast<char*>(ring.data) + static_cast<std::size_t>(place) * bytes, bytes,
                    ring.dimensions.subspan(1)};
}

ffi::Error Run(KernelOfCall* call, ffi::ThreadPool threads, ffi::RemainingArgs arguments, ffi::RemainingRets results,
               std::string_view node, std::string_view name, Numbers in_rings) {
  core::Count(call->calls);
  absl::InlinedVector<HostBuffer, 4> from, to;
  const std::size_t inputs = arguments.size() - in_rings.size();
  for (std::size_t i = 0; i < inputs; ++i) from.push_back(BufferOf(*arguments.get<ffi::AnyBuffer>(i)));
  for (std::size_t i = 0; i < in_rings.size(); ++i) {
    HostBuffer& input = from[static_cast<std::size_t>(in_rings[i])];
    const ffi::ErrorOr<HostBuffer> there =
        InRing(input, *arguments.get<ffi::Buffer<ffi::S32>>(inputs + i)->typed_data());
    if (there.has_error()) return there.error();
    input = *there;
  }
  for (std::size_t i = 0; i < results.size(); ++i) to.push_back(BufferOf(**results.get<ffi::AnyBuffer>(i)));
  const absl::Status done = call->kernel->Run(from, to, HostThreads::Of(threads.num_threads()));
  return done.ok() ? ffi::Error::Success() : Failed(done, node, name);
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate,
                       ffi::Ffi::BindInstantiate()
                           .Attr<std::string_view>("node")  // node
                           .Attr<std::string_view>("name")  // name
                           .Attr<Numbers>("in_rings"));     // (what a run needs)
XLA_FFI_DEFINE_HANDLER(kRun, Run,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<KernelOfCall>>()  // call
                           .Ctx<ffi::ThreadPool>()           // threads
                           .RemainingArgs()                  // arguments
                           .RemainingRets()                  // results
                           .Attr<std::string_view>("node")   // node
                           .Attr<std::string_view>("name")   // name
                           .Attr<Numbers>("in_rings"));      // in_rings

XLA_FFI_REGISTER_TYPE(ffi::GetXlaFfiApi(), "ipu_kernel_of_call", &KernelOfCall::id, ffi::MakeTypeInfo<KernelOfCall>());

// By name: later versions of the API have more stages.
XLA_FFI_Handler_Bundle Stages() {
  XLA_FFI_Handler_Bundle stages{};
  stages.instantiate = kInstantiate;
  stages.execute = kRun;
  return stages;
}
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_host_kernel", "Host", Stages());

}  // namespace
}  // namespace tensorflow_ipu
