#include "tensorflow_ipu/kernels/lowering/host_choice.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow_ipu/kernels/host/twin.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

// Whether a `Conv2D`, or a gradient of one, is of few elements, in one row: what TensorFlow makes of one dimension.
bool IsShortRow(tf::XlaOpKernelContext* context) {
  constexpr int64_t kFew = 256 << 10;
  const absl::StatusOr<xla::Shape> first = context->InputXlaShape(0);
  if (!first.ok()) return false;
  tf::TensorShape images;  // The first input, or of the gradient of them, what it says.
  if (first->dimensions().size() == 1) {
    if (!context->ConstantInputAsShape(0, &images).ok()) return false;
  } else {
    images = tf::TensorShape(first->dimensions());
  }
  constexpr int kRank = 4, kRows = 1;
  return images.dims() == kRank && images.dim_size(kRows) == 1 && images.num_elements() < kFew;
}

}  // namespace

bool AlwaysFaster(const Lowered&) { return true; }

bool FasterWhereOneDnn(const Lowered& layer) {
  tf::DataType type = tf::DT_INVALID;
  if (!tf::TryGetNodeAttr(layer.node, "T", &type)) return false;
  return type == tf::DT_DOUBLE || OneDnnComputes(type);
}

bool FasterConvolution(const Lowered& layer) { return FasterWhereOneDnn(layer) && !IsShortRow(layer.context); }

bool FasterGradient(const Lowered& layer) { return layer.in_loop || FasterConvolution(layer); }

bool FasterWhereOverlapping(const Lowered& layer) {
  std::vector<int32_t> windows, strides;
  if (!tf::TryGetNodeAttr(layer.node, "ksize", &windows) || !tf::TryGetNodeAttr(layer.node, "strides", &strides)) {
    return false;
  }
  bool overlap = false;
  for (std::size_t i = 0; i < windows.size() && i < strides.size(); ++i) overlap |= windows[i] > strides[i];
  return overlap && FasterWhereOneDnn(layer);
}

bool FasterForMany(const Lowered& layer) {
  constexpr int kFew = 4;  // Less than one in so many.
  int64_t count = 0;
  const absl::StatusOr<xla::Shape> from = layer.context->InputXlaShape(0);
  const absl::Status known = layer.context->ConstantInputAsIntScalar(1, &count);
  return known.ok() && from.ok() && !from->dimensions().empty() && kFew * count >= from->dimensions().back();
}

}  // namespace tensorflow_ipu
