// What handlers of custom calls have in common.
//
// Feeds and collectives read their arguments from the frame of the call. XLA's bindings check each argument and pack
// them into a tuple, which takes as long as the rest of a feed's call for a small element; so the bindings only answer
// XLA's queries about the handler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "tensorflow_ipu/kernels/core/status.h"
#include "xla/ffi/api/ffi.h"

// Exported by TensorFlow's library; the header that declares it includes others that are not in the wheel.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace tensorflow_ipu {

// The layout of the frame. Check `xla/ffi/api/c_api.h` before you allow a new version of the API. Versions 0.1 of
// TensorFlow 2.20, 0.2 of 2.21 and 0.4 of 2.22 have the same frame.
static_assert(XLA_FFI_API_MAJOR == 0 && (XLA_FFI_API_MINOR == 1 || XLA_FFI_API_MINOR == 2 || XLA_FFI_API_MINOR == 4),
              "The frame of a call is read as versions 0.1, 0.2 and 0.4 have it.");

struct Memory {
  void* data;
  std::size_t bytes;
};

inline int64_t ElementsOf(const XLA_FFI_Buffer& buffer) {
  int64_t elements = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) elements *= buffer.dims[i];
  return elements;
}

// An argument or a result, which is always a buffer in these calls.
inline void* DataOf(const void* buffer) { return static_cast<const XLA_FFI_Buffer*>(buffer)->data; }

inline Memory MemoryOf(const void* buffer) {
  const auto* const at = static_cast<const XLA_FFI_Buffer*>(buffer);
  return {at->data,
          xla::ffi::ByteWidth(static_cast<xla::ffi::DataType>(at->dtype)) * static_cast<std::size_t>(ElementsOf(*at))};
}

// The memory of argument i, from XLA's bindings or from the frame: for the states that a call begins with.
inline auto StatesOf(const xla::ffi::RemainingArgs& arguments) {
  return [&arguments](std::size_t i) -> const void* {
    return arguments.get<xla::ffi::Buffer<xla::ffi::S64>>(i)->untyped_data();
  };
}
inline auto StatesOf(const XLA_FFI_CallFrame& frame) {
  return [&frame](std::size_t i) -> const void* { return DataOf(frame.args.args[i]); };
}

template <typename T>
T ScalarOf(const void* attribute) {
  return *static_cast<const T*>(static_cast<const XLA_FFI_Scalar*>(attribute)->value);
}

// Whether the frame is that of a plain call, and not a query of XLA's.
inline bool IsCall(const XLA_FFI_CallFrame& frame) {
  return frame.stage == XLA_FFI_ExecutionStage_EXECUTE && frame.extension_start == nullptr;
}

inline xla::ffi::Error ToError(core::Status status) {
  if (status.ok()) return xla::ffi::Error::Success();
  return xla::ffi::Error(static_cast<xla::ffi::ErrorCode>(status.code), std::move(status.message));
}

// The answer of a handler that may have to wait. Most calls do not, and need no future, which is allocated.
struct Reply {
  core::Status status;
  std::optional<xla::ffi::Future> future;  // If set, `status` is ignored.
};

inline XLA_FFI_Error* Return(XLA_FFI_CallFrame* frame, Reply reply) {
  namespace ffi = xla::ffi;
  if (!reply.future.has_value() && reply.status.ok()) return nullptr;
  constexpr auto kStage = ffi::ExecutionStage::kExecute;
  if (!reply.future.has_value()) {
    return ffi::ResultEncoding<kStage, ffi::Error>::Encode(frame->api, frame->ctx, ToError(std::move(reply.status)));
  }
  const std::variant<XLA_FFI_Error*, XLA_FFI_Future*> encoded =
      ffi::ResultEncoding<kStage, ffi::Future>::Encode(frame->api, frame->ctx, std::move(*reply.future));
  if (const auto* const error = std::get_if<XLA_FFI_Error*>(&encoded)) return *error;
  frame->future = std::get<XLA_FFI_Future*>(encoded);
  return nullptr;
}

// Answers XLA's queries about a handler.
XLA_FFI_Error* AnswerQuestion(XLA_FFI_CallFrame* frame);

// A handler that reads the frame of its call.
template <Reply (*call)(const XLA_FFI_CallFrame&)>
XLA_FFI_Error* CalledWithFrame(XLA_FFI_CallFrame* frame) {
  return IsCall(*frame) ? Return(frame, call(*frame)) : AnswerQuestion(frame);
}

// What a parameter of a handler is bound to: what follows from its type, or else an attribute.
template <typename T>
constexpr bool kIsAttribute =
    std::is_arithmetic_v<T> || std::is_same_v<T, std::string_view> || std::is_same_v<T, xla::ffi::Span<const int64_t>>;

template <typename... Parameters>
struct ParameterList {};

template <typename Function, typename Binding>
auto Bound(Function function, Binding binding, const char* const*, ParameterList<>) {
  return std::move(binding).To(function);
}

template <typename Function, typename Binding, typename First, typename... Rest>
auto Bound(Function function, Binding binding, const char* const* name, ParameterList<First, Rest...>) {
  namespace ffi = xla::ffi;
  constexpr ParameterList<Rest...> kRest;
  if constexpr (kIsAttribute<First>) {
    return Bound(function, std::move(binding).template Attr<First>(*name), name + 1, kRest);
  } else if constexpr (std::is_same_v<First, ffi::RemainingArgs>) {
    return Bound(function, std::move(binding).RemainingArgs(), name, kRest);
  } else if constexpr (std::is_same_v<First, ffi::RemainingRets>) {
    return Bound(function, std::move(binding).RemainingRets(), name, kRest);
  } else if constexpr (std::is_same_v<First, ffi::ThreadPool>) {
    return Bound(function, std::move(binding).template Ctx<First>(), name, kRest);
  } else if constexpr (std::is_pointer_v<First>) {
    return Bound(function, std::move(binding).template Ctx<ffi::State<std::remove_pointer_t<First>>>(), name, kRest);
  } else if constexpr (std::is_void_v<typename ffi::RetBinding<First>::Ret>) {
    return Bound(function, std::move(binding).template Arg<First>(), name, kRest);
  } else {
    return Bound(function, std::move(binding).template Ret<typename ffi::RetBinding<First>::Ret>(), name, kRest);
  }
}

template <xla::ffi::ExecutionStage stage, typename Result, typename... Parameters, typename... Names>
auto HandlerOf(Result (*function)(Parameters...), Names... names) {
  static_assert((std::size_t{0} + ... + kIsAttribute<Parameters>) == sizeof...(names), "An attribute has no name.");
  const char* const all[] = {names..., nullptr};
  return Bound(function, xla::ffi::Ffi::Bind<stage>(), all, ParameterList<Parameters...>());
}

// Defines the handler that calls a function through XLA's bindings. The names of its attributes follow, in the order of
// its parameters.
#define IPU_DEFINE_HANDLER(handler, stage, function, ...)                                                    \
  constexpr XLA_FFI_Handler* handler = +[](XLA_FFI_CallFrame* frame) {                                       \
    static auto* const made = HandlerOf<xla::ffi::ExecutionStage::stage>(function, ##__VA_ARGS__).release(); \
    return made->Call(frame);                                                                                \
  }

// Also registers it.
#define IPU_HANDLER(name, function, ...)                                    \
  IPU_DEFINE_HANDLER(function##Handler, kExecute, function, ##__VA_ARGS__); \
  XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), name, "Host", function##Handler)

// The stages of a handler that keeps a state for each call in a program. By name: later versions of the API have more.
inline XLA_FFI_Handler_Bundle BundleOf(XLA_FFI_Handler* instantiate, XLA_FFI_Handler* execute) {
  XLA_FFI_Handler_Bundle stages{};
  stages.instantiate = instantiate;
  stages.execute = execute;
  return stages;
}

inline xla::ffi::Error NoSuchSlot(int32_t slot) {
  return xla::ffi::Error::Internal("A pipeline has used slot " + std::to_string(slot) +
                                   " of a stash buffer that has fewer.");
}

}  // namespace tensorflow_ipu
