#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_RING_PLACES_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_RING_PLACES_H_

#include <optional>

#include "absl/status/status.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tensorflow_ipu {

// A place of a ring: a tensor [depth, ...], and an int32 scalar.
struct RingPlace {
  xla::XlaOp ring;
  xla::XlaOp place;
};

// Notes that `value` was read from that place.
absl::Status NoteRingPlace(tensorflow::XlaOpKernelContext* context, xla::XlaOp value, const RingPlace& place);

// The place that `value` was read from, if it was noted.
std::optional<RingPlace> RingPlaceOf(tensorflow::XlaOpKernelContext* context, xla::XlaOp value);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_RING_PLACES_H_
