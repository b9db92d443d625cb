// The answer of a handler that may have to wait: success, an error, or a future.
#ifndef TENSORFLOW_IPU_KERNELS_FFI_REPLY_H_
#define TENSORFLOW_IPU_KERNELS_FFI_REPLY_H_

#include <optional>
#include <utility>
#include <variant>

#include "tensorflow_ipu/kernels/core/outcome.h"
#include "tensorflow_ipu/kernels/ffi/frame.h"
#include "xla/ffi/api/ffi.h"

// Exported by TensorFlow's library; the header that declares it includes others that are not in the wheel.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace tensorflow_ipu {

inline xla::ffi::Error ToError(core::Outcome outcome) {
  if (outcome.ok()) return xla::ffi::Error::Success();
  return xla::ffi::Error(static_cast<xla::ffi::ErrorCode>(outcome.code), std::move(outcome.message));
}

// A future is allocated and followed, and most calls do not need one.
struct Reply {
  core::Outcome outcome;
  std::optional<xla::ffi::Future> future;  // If set, `outcome` is ignored.
};

inline XLA_FFI_Error* Return(XLA_FFI_CallFrame* frame, Reply reply) {
  namespace ffi = xla::ffi;
  if (!reply.future.has_value() && reply.outcome.ok()) return nullptr;
  constexpr auto kStage = ffi::ExecutionStage::kExecute;
  if (!reply.future.has_value()) {
    return ffi::ResultEncoding<kStage, ffi::Error>::Encode(frame->api, frame->ctx, ToError(std::move(reply.outcome)));
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

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_FFI_REPLY_H_
