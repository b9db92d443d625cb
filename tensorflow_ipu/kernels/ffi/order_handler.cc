// Handler that joins the orders of a program.
#include <cstddef>
#include <cstring>

#include "tensorflow_ipu/kernels/ffi/reply.h"
#include "xla/ffi/api/ffi.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

// XLA was told to alias results and operands. It copies an operand where the program has lost its memory.
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
                           .RemainingArgs()  // states
                           .RemainingRets());
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_join_orders", "Host", kJoinOrders);

}  // namespace
}  // namespace tensorflow_ipu
