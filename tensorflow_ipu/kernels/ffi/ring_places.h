#ifndef TENSORFLOW_IPU_KERNELS_FFI_RING_PLACES_H_
#define TENSORFLOW_IPU_KERNELS_FFI_RING_PLACES_H_

#include <cstdint>
#include <string>

#include "xla/ffi/api/ffi.h"

namespace tensorflow_ipu {

inline xla::ffi::Error NoSuchPlace(int32_t place) {
  return xla::ffi::Error::Internal("A pipeline has used place " + std::to_string(place) + " of a ring that has fewer.");
}

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_FFI_RING_PLACES_H_
