// Handler of calls of host functions.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "tensorflow_ipu/kernels/core/metrics.h"
#include "tensorflow_ipu/kernels/core/program_state.h"
#include "tensorflow_ipu/kernels/ffi/frame.h"
#include "tensorflow_ipu/kernels/ffi/reply.h"
#include "tensorflow_ipu/kernels/host/function.h"
#include "tensorflow_ipu/kernels/host/lines.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

// Returns a future at once: the function may take long and wait for the user's code, and this is one of the few threads
// on which programs compute.
ffi::Future CallHost(std::string_view node, std::string_view name, ffi::RemainingArgs arguments,
                     ffi::ResultBuffer<ffi::S64> next_state, ffi::RemainingRets results) {
  ffi::Promise promise;
  ffi::Future future(promise);
  const core::OrderedState states = core::OrderedStateAt(StatesOf(arguments));
  const std::shared_ptr<HostFunction> function = HostFunctions().Find(states.used.number);
  if (function == nullptr) {
    promise.SetError(
        ToError(core::Outcome::NotFound(absl::StrCat(name, LinesOf(node, name),
                                                     ": it was deleted with the function that was traced. Keep the "
                                                     "`tf.function` as long as its programs run."))));
    return future;
  }
  core::Count(&core::Metrics::Global().host_function_calls);
  core::Advance(states.advanced, next_state->untyped_data());
  absl::InlinedVector<HostBuffer, 4> passed;
  for (auto i = static_cast<std::size_t>(states.states); i < arguments.size(); ++i) {
    const auto buffer = *arguments.get<ffi::AnyBuffer>(i);
    const auto dimensions = buffer.dimensions();
    passed.push_back({buffer.untyped_data(), buffer.size_bytes(), {dimensions.begin(), dimensions.size()}});
  }
  std::vector<HostResult> to;
  for (std::size_t i = 0; i < results.size(); ++i) {
    auto buffer = *results.get<ffi::AnyBuffer>(i);
    const auto dimensions = buffer->dimensions();
    to.push_back({buffer->untyped_data(), buffer->size_bytes(),
                  tensorflow::TensorShape(absl::Span<const int64_t>(dimensions.begin(), dimensions.size()))});
  }
  function->Run(states.used.lane, states.used.lanes, passed, std::move(to),
                [promise, node = std::string(node), name = std::string(name)](const absl::Status& status) mutable {
                  if (status.ok()) return promise.SetAvailable();
                  promise.SetError(ToError({static_cast<core::Code>(status.code()),
                                            absl::StrCat(name, LinesOf(node, name), ": ", status.message())}));
                });
  return future;
}

XLA_FFI_DEFINE_HANDLER(kCallHost, CallHost,
                       ffi::Ffi::Bind()
                           .Attr<std::string_view>("node")
                           .Attr<std::string_view>("name")
                           .RemainingArgs()               // the order, if there is one, the state, and what is passed
                           .Ret<ffi::Buffer<ffi::S64>>()  // next_state
                           .RemainingRets());             // results
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_host_call", "Host", kCallHost);

}  // namespace
}  // namespace tensorflow_ipu
