// Handler that checks a number of micro-batches.
#include <cstdint>
#include <string>
#include <string_view>

#include "tensorflow_ipu/kernels/ffi/reply.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

ffi::Error CheckMicroBatches(ffi::Buffer<ffi::S64> count, ffi::ResultBuffer<ffi::S64> checked, int64_t multiple,
                             int64_t least, int64_t largest, std::string_view before, std::string_view behind) {
  const int64_t value = *count.typed_data();
  if (value < least || value % multiple != 0 || value > largest) {
    return ToError(
        core::Outcome::FailedPrecondition(std::string(before) + std::to_string(value) + std::string(behind)));
  }
  *checked->typed_data() = value;
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kCheckMicroBatches, CheckMicroBatches,
                       ffi::Ffi::Bind()
                           .Arg<ffi::Buffer<ffi::S64>>()  // count
                           .Ret<ffi::Buffer<ffi::S64>>()  // checked
                           .Attr<int64_t>("multiple")
                           .Attr<int64_t>("least")
                           .Attr<int64_t>("largest")
                           .Attr<std::string_view>("before")
                           .Attr<std::string_view>("behind"));
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_micro_batches", "Host", kCheckMicroBatches);

}  // namespace
}  // namespace tensorflow_ipu
