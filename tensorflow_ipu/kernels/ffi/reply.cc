#include "tensorflow_ipu/kernels/ffi/reply.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

ffi::Error RefuseOtherCall(ffi::RemainingArgs /*arguments*/, ffi::RemainingRets /*results*/) {
  return {ffi::ErrorCode::kInternal, "A custom call was made in a way that this version of XLA's API does not have."};
}

XLA_FFI_DEFINE_HANDLER(kQuestion, RefuseOtherCall, ffi::Ffi::Bind().RemainingArgs().RemainingRets());

}  // namespace

XLA_FFI_Error* AnswerQuestion(XLA_FFI_CallFrame* frame) { return kQuestion(frame); }

}  // namespace tensorflow_ipu
