// Conversion between the core's status and TensorFlow's.
#ifndef TENSORFLOW_IPU_KERNELS_HOST_STATUS_H_
#define TENSORFLOW_IPU_KERNELS_HOST_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "tensorflow_ipu/kernels/core/status.h"

namespace tensorflow_ipu {

inline absl::Status ToAbsl(const core::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.code), status.message);
}

inline core::Status ToCore(const absl::Status& status) {
  return {static_cast<core::Code>(status.code()), std::string(status.message())};
}

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_STATUS_H_
