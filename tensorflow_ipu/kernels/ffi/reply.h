// What a handler that may have to wait returns to XLA: done, failed, or a future.
#ifndef TENSORFLOW_IPU_KERNELS_FFI_REPLY_H_
#define TENSORFLOW_IPU_KERNELS_FFI_REPLY_H_

#include <optional>
#include <utility>
#include <variant>

#include "tensorflow_ipu/kernels/core/outcome.h"
#include "xla/ffi/api/ffi.h"

// Exported by TensorFlow's library; the header that declares it includes others that the wheel does not carry.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace tensorflow_ipu {

inline xla::ffi::Error ToError(core::Outcome outcome) {
  if (outcome.ok()) return xla::ffi::Error::Success();
  return xla::ffi::Error(static_cast<xla::ffi::ErrorCode>(outcome.code), std::move(outcome.message));
}

// A future is allocated and followed; most calls have their data at hand and need none.
struct Reply {
  core::Outcome outcome;
  std::optional<xla::ffi::Future> future;  // Where set, it decides, not `outcome`.
};

}  // namespace tensorflow_ipu

namespace xla::ffi {

template <ExecutionStage stage>
struct ResultEncoding<stage, tensorflow_ipu::Reply> {
  static std::variant<XLA_FFI_Error*, XLA_FFI_Future*> Encode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                                                              tensorflow_ipu::Reply reply) {
    if (reply.future.has_value()) return ResultEncoding<stage, Future>::Encode(api, ctx, std::move(*reply.future));
    return ResultEncoding<stage, Error>::Encode(api, ctx, tensorflow_ipu::ToError(std::move(reply.outcome)));
  }
};

}  // namespace xla::ffi

#endif  // TENSORFLOW_IPU_KERNELS_FFI_REPLY_H_
