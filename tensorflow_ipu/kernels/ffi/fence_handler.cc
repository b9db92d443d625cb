// Handler of the loop of a fence, which goes on once (`lowering/single_loop.h`).
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

ffi::Error Fence(ffi::Buffer<ffi::S32> behind, ffi::Result<ffi::Buffer<ffi::PRED>> goes,
                 ffi::Result<ffi::Buffer<ffi::S32>> passed, bool whether) {
  *goes->typed_data() = whether;
  *passed->typed_data() = *behind.typed_data();
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kFence, Fence,
                       ffi::Ffi::Bind()
                           .Arg<ffi::Buffer<ffi::S32>>()   // behind
                           .Ret<ffi::Buffer<ffi::PRED>>()  // goes
                           .Ret<ffi::Buffer<ffi::S32>>()   // behind
                           .Attr<bool>("goes"));
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_fence", "Host", kFence);

}  // namespace
}  // namespace tensorflow_ipu
