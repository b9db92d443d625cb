// Bindings and results that the handlers of custom calls have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "xla/ffi/api/ffi.h"

namespace tensorflow_ipu {

// The result of a handler that may have to wait. Most calls do not wait, and so avoid the allocation of a future.
using Answer = std::variant<xla::ffi::Error, xla::ffi::Future>;

inline xla::ffi::Error ToError(const absl::Status& status) {
  return {static_cast<xla::ffi::ErrorCode>(status.code()), std::string(status.message())};
}

inline xla::ffi::Error NoSuchSlot(int32_t slot) {
  return xla::ffi::Error::Internal("A pipeline used slot " + std::to_string(slot) +
                                   " of a stash buffer that has fewer.");
}

inline std::string_view TextOf(const xla::ffi::Dictionary& attributes, std::string_view name) {
  return *attributes.get<std::string_view>(name);
}

using StateBuffer = xla::ffi::Buffer<xla::ffi::S64>;

// Binds a call that uses a state. Its arguments are the program's order, if there is one, the state, and values. Its
// results are the next state and values. The caller appends attributes.
inline auto BindStateAndValues() { return xla::ffi::Ffi::Bind().RemainingArgs().Ret<StateBuffer>().RemainingRets(); }

// Returns the memory of argument i, for the states at the start of a call's arguments.
inline auto StatesOf(const xla::ffi::RemainingArgs& arguments) {
  return [&arguments](std::size_t i) { return arguments.get<xla::ffi::AnyBuffer>(i)->untyped_data(); };
}

}  // namespace tensorflow_ipu

namespace xla::ffi {

// Exported by TensorFlow's library. The header that declares it includes headers that are not in the wheel.
const XLA_FFI_Api* GetXlaFfiApi();

template <ExecutionStage stage>
struct ResultEncoding<stage, tensorflow_ipu::Answer> {
  static std::variant<XLA_FFI_Error*, XLA_FFI_Future*> Encode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* context,
                                                              tensorflow_ipu::Answer answer) {
    if (auto* const future = std::get_if<Future>(&answer)) {
      return ResultEncoding<stage, Future>::Encode(api, context, std::move(*future));
    }
    return ResultEncoding<stage, Error>::Encode(api, context, std::get<Error>(std::move(answer)));
  }
};

}  // namespace xla::ffi

// Registers `function` as a handler. The last argument is the binding. It is optional if all arguments of the function
// are typed buffers, because XLA can then infer it.
#define IPU_HANDLER(name, function, ...)                              \
  XLA_FFI_DEFINE_HANDLER(function##Handler, function, ##__VA_ARGS__); \
  XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), name, "Host", function##Handler)
