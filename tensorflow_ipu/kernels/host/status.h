// Conversion between the core's status and TensorFlow's.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tensorflow_ipu/kernels/support/status.h"

namespace tensorflow_ipu {

inline absl::Status ToAbsl(const core::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.code), status.message);
}

inline core::Status ToCore(const absl::Status& status) {
  return {static_cast<core::Code>(status.code()), std::string(status.message())};
}

}  // namespace tensorflow_ipu
