// The custom call from which orders that do not know of each other begin and end as one.
#include <cstddef>
#include <cstring>

#include "tensorflow_ipu/kernels/ffi/reply.h"
#include "xla/ffi/api/ffi.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

// XLA was told that each result takes the memory of its operand. Where a program has lost that, there is one to copy.
ffi::Error JoinOrders(ffi::RemainingArgs states, ffi::RemainingRets joined) {
  for (std::size_t i = 0; i < states.size(); ++i) {
    const ffi::AnyBuffer state = *states.get<ffi::AnyBuffer>(i);
    const ffi::AnyBuffer result = **joined.get<ffi::AnyBuffer>(i);
    if (result.untyped_data() == state.untyped_data()) continue;
    std::memcpy(result.untyped_data(), state.untyped_data(), state.size_bytes());
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kJoinOrders, JoinOrders,
                       ffi::Ffi::Bind()
                           .RemainingArgs()    // states
                           .RemainingRets());  // the same
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_join_orders", "Host", kJoinOrders);

}  // namespace
}  // namespace tensorflow_ipu
