#include "tensorflow_ipu/kernels/ops/host_choice.h"

#include <cstdint>

#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow_ipu/kernels/host/twin.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

bool AlwaysFaster(const Lowered&) { return true; }

bool FasterWhereOneDnn(const Lowered& layer) {
  tf::DataType type = tf::DT_INVALID;
  if (!tf::TryGetNodeAttr(layer.node, "T", &type)) return false;
  return type == tf::DT_DOUBLE || OneDnnComputes(type);
}

bool FasterWhereOneDnnOrLoops(const Lowered& layer) { return layer.in_loop || FasterWhereOneDnn(layer); }

bool FasterForMuch(const Lowered& layer) {
  constexpr int64_t kMuch = 2 << 20;  // Elements.
  // The first input is what is pooled or, of a gradient, the sizes of it.
  const absl::StatusOr<xla::Shape> first = layer.context->InputXlaShape(0);
  if (!first.ok()) return false;
  int64_t elements = xla::ShapeUtil::ElementsIn(*first);
  if (first->dimensions().size() == 1) {
    tf::TensorShape pooled;
    if (!layer.context->ConstantInputAsShape(0, &pooled).ok()) return false;
    elements = pooled.num_elements();
  }
  return elements >= kMuch && FasterWhereOneDnn(layer);
}

bool FasterForMany(const Lowered& layer) {
  constexpr int kFew = 4;  // Less than one in so many.
  int64_t count = 0;
  const absl::StatusOr<xla::Shape> from = layer.context->InputXlaShape(0);
  const absl::Status known = layer.context->ConstantInputAsIntScalar(1, &count);
  return known.ok() && from.ok() && !from->dimensions().empty() && kFew * count >= from->dimensions().back();
}

}  // namespace tensorflow_ipu
