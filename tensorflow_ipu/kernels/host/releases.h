// Differences between releases of TensorFlow. `IPU_TENSORFLOW` is 220 for 2.20 and 221 for 2.21. Code for an old
// release can be removed when that release is no longer supported.
#pragma once

// The headers of 2.20 declare these functions of Abseil's logging, but its libraries do not export them.
#if IPU_TENSORFLOW < 221
#include "absl/log/log.h"

namespace absl::log_internal {
template LogMessage& LogMessage::operator<<(const char&);
template LogMessage& LogMessage::operator<<(const int&);
template LogMessage& LogMessage::operator<<(const long&);           // NOLINT: the types of Abseil's declarations.
template LogMessage& LogMessage::operator<<(const unsigned long&);  // NOLINT: the types of Abseil's declarations.
}  // namespace absl::log_internal
#endif

namespace tensorflow_ipu {

// 2.20 has version 0.1 of the API of custom calls, which registers states with their deleters.
#if IPU_TENSORFLOW < 221
#define IPU_REGISTER_STATE(name, State) XLA_FFI_REGISTER_TYPE(xla::ffi::GetXlaFfiApi(), name, &State::id)
#else
#define IPU_REGISTER_STATE(name, State) \
  XLA_FFI_REGISTER_TYPE(xla::ffi::GetXlaFfiApi(), name, &State::id, xla::ffi::MakeTypeInfo<State>())
#endif

// Executables of 2.20 do not contain the features of their processor.
template <typename Executable>
void ClearProcessorFeatures([[maybe_unused]] Executable& executable) {
#if IPU_TENSORFLOW >= 221
  executable.mutable_target_machine_options()->clear_features();
#endif
}

// XLA of 2.20 has an operation for the tangent, but composes the inverse and hyperbolic functions from other
// operations.
#if IPU_TENSORFLOW < 221
#define IPU_INVERSE_AND_HYPERBOLIC xla::HloOpcode::kTan
#else
#define IPU_INVERSE_AND_HYPERBOLIC                                                              \
  xla::HloOpcode::kAcos, xla::HloOpcode::kAcosh, xla::HloOpcode::kAsin, xla::HloOpcode::kAsinh, \
      xla::HloOpcode::kAtanh, xla::HloOpcode::kCosh, xla::HloOpcode::kSinh, xla::HloOpcode::kTan
#endif

}  // namespace tensorflow_ipu
