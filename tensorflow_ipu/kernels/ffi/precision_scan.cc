// Handler that looks for values that may stop the program.
#include <cstddef>
#include <cstdint>

#include "tensorflow_ipu/kernels/core/scan.h"
#include "tensorflow_ipu/kernels/ffi/reply.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

bool HasFrom(int64_t limit, const ffi::AnyBuffer& tensor) {
  const auto count = static_cast<int64_t>(tensor.element_count());
  if (tensor.element_type() == ffi::F16) {
    return core::HasHalvesFrom(static_cast<uint16_t>(limit), static_cast<const uint16_t*>(tensor.untyped_data()),
                               count);
  }
  return core::HasFloatsFrom(static_cast<uint32_t>(limit), static_cast<const uint32_t*>(tensor.untyped_data()), count);
}

ffi::Error Scan(ffi::Span<const int64_t> limits, ffi::RemainingArgs tensors, ffi::ResultBuffer<ffi::PRED> found) {
  bool& result = found->typed_data()[0];
  result = false;
  for (std::size_t i = 0; i < limits.size() && !result; ++i) {
    result = HasFrom(limits[i], *tensors.get<ffi::AnyBuffer>(i));
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(
    kScan, Scan,
    ffi::Ffi::Bind()
        .Attr<ffi::Span<const int64_t>>("limits")  // The bits from which on a value may stop the program.
        .RemainingArgs()                           // tensors
        .Ret<ffi::Buffer<ffi::PRED>>());           // found
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_half_scan", "Host", kScan);

}  // namespace
}  // namespace tensorflow_ipu
