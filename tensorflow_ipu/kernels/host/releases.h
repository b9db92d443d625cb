// Where releases of TensorFlow differ. `IPU_TENSORFLOW` is 220 for 2.20, 221 for 2.21; what is for an older one can go
// with it.
#pragma once

// The libraries of 2.20 do not export how Abseil logs numbers, which its headers have them do.
#if IPU_TENSORFLOW < 221
#include "absl/log/log.h"

namespace absl::log_internal {
template LogMessage& LogMessage::operator<<(const char&);
template LogMessage& LogMessage::operator<<(const int&);
template LogMessage& LogMessage::operator<<(const long&);           // NOLINT: as there.
template LogMessage& LogMessage::operator<<(const unsigned long&);  // NOLINT: as there.
}  // namespace absl::log_internal
#endif

namespace tensorflow_ipu {

// 2.20 has version 0.1 of the API of custom calls, in which states are registered with their deleters.
#if IPU_TENSORFLOW < 221
#define IPU_REGISTER_STATE(name, State) XLA_FFI_REGISTER_TYPE(xla::ffi::GetXlaFfiApi(), name, &State::id)
#else
#define IPU_REGISTER_STATE(name, State) \
  XLA_FFI_REGISTER_TYPE(xla::ffi::GetXlaFfiApi(), name, &State::id, xla::ffi::MakeTypeInfo<State>())
#endif

// Executables of 2.20 do not say what processor they are for.
template <typename Executable>
void ClearProcessorFeatures([[maybe_unused]] Executable& executable) {
#if IPU_TENSORFLOW >= 221
  executable.mutable_target_machine_options()->clear_features();
#endif
}

// XLA of 2.20 composes the inverse and hyperbolic functions of others. Its tangent is an operation too.
#if IPU_TENSORFLOW < 221
#define IPU_INVERSE_AND_HYPERBOLIC xla::HloOpcode::kTan
#else
#define IPU_INVERSE_AND_HYPERBOLIC                                                              \
  xla::HloOpcode::kAcos, xla::HloOpcode::kAcosh, xla::HloOpcode::kAsin, xla::HloOpcode::kAsinh, \
      xla::HloOpcode::kAtanh, xla::HloOpcode::kCosh, xla::HloOpcode::kSinh, xla::HloOpcode::kTan
#endif

}  // namespace tensorflow_ipu
