#include "tensorflow_ipu/kernels/lowering/host_choice.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow_ipu/kernels/host/twin.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

// The shape of an input, or the shape that the input holds if it is one of a gradient.
std::optional<tf::TensorShape> ShapeOf(tf::XlaOpKernelContext* context, int input) {
  const absl::StatusOr<xla::Shape> given = context->InputXlaShape(input);
  if (!given.ok()) return std::nullopt;
  if (given->dimensions().size() > 1) return tf::TensorShape(given->dimensions());
  tf::TensorShape said;
  if (!context->ConstantInputAsShape(input, &said).ok()) return std::nullopt;
  return said;
}

constexpr int kRank = 4, kRows = 1, kColumns = 2;  // Of the images of a `Conv2D`.

// Whether a `Conv2D` or a gradient of one is small: of one row, as TensorFlow makes it of one dimension, and few
// elements; or of few output positions and few products. `skipped` is the product of the strides.
bool IsSmall(const tf::TensorShape& images, int64_t filter_elements, int64_t skipped, tf::DataType type) {
  constexpr int64_t kShortRow = 256 << 10, kFewPlaces = 8 << 10, kFewProducts = 20 << 20;
  if (images.dim_size(kRows) == 1) return images.num_elements() < kShortRow;
  if (type != tf::DT_FLOAT) return false;
  const int64_t places = images.dim_size(0) * images.dim_size(kRows) * images.dim_size(kColumns) / skipped;
  return places <= kFewPlaces && places * filter_elements < kFewProducts;
}

bool IsSmall(const Lowered& layer) {
  const std::optional<tf::TensorShape> images = ShapeOf(layer.context, 0);
  const std::optional<tf::TensorShape> filter = ShapeOf(layer.context, 1);
  std::vector<int32_t> strides;
  if (!images || !filter || images->dims() != kRank || !tf::TryGetNodeAttr(layer.node, "strides", &strides)) {
    return false;
  }
  tf::DataType type = tf::DT_INVALID;
  if (!tf::TryGetNodeAttr(layer.node, "T", &type)) return false;
  return IsSmall(*images, filter->num_elements(), strides[kRows] * strides[kColumns], type);
}

}  // namespace

bool AlwaysFaster(const Lowered&) { return true; }

bool FasterWhereOneDnn(const Lowered& layer) {
  tf::DataType type = tf::DT_INVALID;
  if (!tf::TryGetNodeAttr(layer.node, "T", &type)) return false;
  return type == tf::DT_DOUBLE || OneDnnComputes(type);
}

bool FasterConvolution(const Lowered& layer) { return FasterWhereOneDnn(layer) && !IsSmall(layer); }

bool FasterGradient(const Lowered& layer) { return layer.in_loop || FasterWhereOneDnn(layer); }

bool FasterWhereOverlapping(const Lowered& layer) {
  std::vector<int32_t> windows, strides;
  if (!tf::TryGetNodeAttr(layer.node, "ksize", &windows) || !tf::TryGetNodeAttr(layer.node, "strides", &strides)) {
    return false;
  }
  bool overlap = false;
  for (std::size_t i = 0; i < windows.size() && i < strides.size(); ++i) overlap |= windows[i] > strides[i];
  return overlap && FasterWhereOneDnn(layer);
}

bool FasterBatchNorm(const Lowered& layer) {
  constexpr int64_t kLarge = 512 << 10, kLargeWithoutAvx512 = 768 << 10, kManyFeatures = 32;
  const absl::StatusOr<xla::Shape> images = layer.context->InputXlaShape(0);
  if (!FasterWhereOneDnn(layer) || !images.ok() || images->dimensions().empty()) return false;
  const int64_t elements = xla::ShapeUtil::ElementsIn(*images);
  if (OneDnnComputes(tf::DT_BFLOAT16)) return elements >= kLarge;  // The processor has AVX-512.
  return elements >= kLargeWithoutAvx512 && images->dimensions().back() >= kManyFeatures;
}

bool FasterForMany(const Lowered& layer) {
  constexpr int kFew = 4;  // At least one element in so many is taken.
  int64_t count = 0;
  const absl::StatusOr<xla::Shape> from = layer.context->InputXlaShape(0);
  const absl::Status known = layer.context->ConstantInputAsIntScalar(1, &count);
  return known.ok() && from.ok() && !from->dimensions().empty() && kFew * count >= from->dimensions().back();
}

}  // namespace tensorflow_ipu

extern "C" {

// Whether a `Conv2D` of images of these four dimensions is so small that XLA computes it faster than the host's
// kernels. `skipped` is the product of the strides, and `type` a `DataType`.
int32_t ipu_small_convolution(const int64_t* images, int64_t filter_elements, int64_t skipped, int32_t type) {
  const tensorflow::TensorShape shape({images[0], images[1], images[2], images[3]});
  return tensorflow_ipu::IsSmall(shape, filter_elements, skipped, static_cast<tensorflow::DataType>(type));
}

}  // extern "C"
