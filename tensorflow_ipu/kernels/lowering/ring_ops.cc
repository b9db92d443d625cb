// `IpuRingZeros`, `IpuRingRead` and `IpuRingWrite`: buffers that hold a tensor for several micro-batches. Reads below
// 256 KiB and all writes are custom calls, one a tensor: XLA would compile a kernel for each slice and each depth, and
// pipeline stages differ in depth. One call for all tensors would have all of their values in memory at once. Larger
// values are read by slices, which XLA reads in place, where a call copies.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/lowering/ring_places.h"
#include "tensorflow_ipu/kernels/lowering/stated_shapes.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/layout_util.h"
#include "xla/shape.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

REGISTER_OP("IpuRingZeros")
    .Output("rings: T")
    .Attr("T: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .SetShapeFn(StatedShapes);

// Reads a place of tensors [depth, ...] as tensors [...]. `behind` is 0, and available once the place may be used.
REGISTER_OP("IpuRingRead")
    .Input("rings: T")
    .Input("place: int32")
    .Input("behind: int32")
    .Output("values: T")
    .Attr("T: list(type) >= 1")
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) {
        tf::shape_inference::ShapeHandle shape;
        TF_RETURN_IF_ERROR(context->Subshape(context->input(i), 1, &shape));
        context->set_output(i, shape);
      }
      return absl::OkStatus();
    });

// Writes values [...] to a place of tensors [depth, ...]. `behind` is as above.
REGISTER_OP("IpuRingWrite")
    .Input("rings: T")
    .Input("values: T")
    .Input("place: int32")
    .Input("behind: int32")
    .Output("written: T")
    .Attr("T: list(type) >= 1")
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    });

namespace {

// The shape in the layout in which a place is contiguous.
xla::Shape Plain(xla::Shape shape) {
  xla::LayoutUtil::SetToDefaultLayout(&shape);
  return shape;
}

// Calls `target` with these operands. With `in_place`, the result takes the memory of the first one.
absl::StatusOr<xla::XlaOp> Call(xla::XlaBuilder* builder, const std::string& target,
                                const std::vector<xla::XlaOp>& operands, const xla::Shape& result, bool in_place) {
  std::vector<xla::Shape> shapes;
  for (const xla::XlaOp& operand : operands) {
    absl::StatusOr<xla::Shape> shape = builder->GetShape(operand);
    if (!shape.ok()) return shape.status();
    shapes.push_back(Plain(*std::move(shape)));
  }
  std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>> aliases;
  if (in_place) aliases.push_back({{}, {0, {}}});
  return xla::CustomCallWithLayout(builder, target, operands, result, shapes, /*opaque=*/"", /*has_side_effect=*/false,
                                   aliases, /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
                                   xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
}

// From this size on XLA reads a slice in place, which is faster than a copy. Writes are calls at any size, whose
// threads share large copies: XLA does not divide an update in place among threads.
constexpr int64_t kLarge = 256 << 10;

// The shape of one place of a ring.
xla::Shape OfPlace(const xla::Shape& ring) { return Plain(xla::ShapeUtil::DeleteDimension(0, ring)); }

bool IsLarge(const xla::Shape& value) { return xla::ShapeUtil::ByteSizeOf(value) >= kLarge; }

// The start indices of a place: its number along the first axis, and 0 along the others.
std::vector<xla::XlaOp> BeginOf(xla::XlaBuilder* builder, xla::XlaOp place, const xla::Shape& ring) {
  std::vector<xla::XlaOp> begin(ring.dimensions().size(), xla::ConstantR0<int32_t>(builder, 0));
  begin[0] = place;
  return begin;
}

std::vector<int64_t> Single(const xla::Shape& value) {
  std::vector<int64_t> sizes(value.dimensions().begin(), value.dimensions().end());
  sizes.insert(sizes.begin(), 1);
  return sizes;
}

absl::StatusOr<xla::XlaOp> Read(tf::XlaOpKernelContext* context, xla::XlaOp ring, const xla::Shape& shape,
                                xla::XlaOp place, xla::XlaOp behind) {
  xla::XlaBuilder* const builder = context->builder();
  const xla::Shape value = OfPlace(shape);
  if (!IsLarge(value)) return Call(builder, "ipu_ring_read", {ring, place, behind}, value, /*in_place=*/false);
  place = place + behind;
  const xla::XlaOp there =
      xla::Reshape(xla::DynamicSlice(ring, BeginOf(builder, place, shape), Single(value)), value.dimensions());
  if (const absl::Status noted = NoteRingPlace(context, there, {ring, place}); !noted.ok()) return noted;
  return there;
}

class RingZerosXla : public tf::XlaOpKernel {
 public:
  explicit RingZerosXla(tf::OpKernelConstruction* construction) : XlaOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("output_shapes", &shapes_));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<xla::Shape> rings(shapes_.size());
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      OP_REQUIRES_OK(context, tf::TensorShapeToXLAShape(context->expected_output_dtype(static_cast<int>(i)), shapes_[i],
                                                        &rings[i]));
      rings[i] = Plain(std::move(rings[i]));
    }
    const absl::StatusOr<xla::XlaOp> zeros =
        Call(context->builder(), "ipu_ring_zeros", {}, xla::ShapeUtil::MakeTupleShape(rings), /*in_place=*/false);
    OP_REQUIRES_OK(context, zeros.status());
    for (int i = 0; i < context->num_outputs(); ++i) context->SetOutput(i, xla::GetTupleElement(*zeros, i));
  }

 private:
  std::vector<tf::TensorShape> shapes_;
};

class RingReadXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    const xla::XlaOp place = context->Input(context->num_inputs() - 2);
    const xla::XlaOp behind = context->Input(context->num_inputs() - 1);
    for (int i = 0; i < context->num_outputs(); ++i) {
      const absl::StatusOr<xla::Shape> ring = context->InputXlaShape(i);
      OP_REQUIRES_OK(context, ring.status());
      OP_REQUIRES(context, !ring->dimensions().empty(), absl::InvalidArgumentError("A ring has one axis at least."));
      const absl::StatusOr<xla::XlaOp> value = Read(context, context->Input(i), *ring, place, behind);
      OP_REQUIRES_OK(context, value.status());
      context->SetOutput(i, *value);
    }
  }
};

class RingWriteXla : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    const int rings = context->num_outputs();
    const xla::XlaOp place = context->Input(context->num_inputs() - 2);
    const xla::XlaOp behind = context->Input(context->num_inputs() - 1);
    for (int i = 0; i < rings; ++i) {
      const absl::StatusOr<xla::Shape> ring = context->InputXlaShape(i);
      OP_REQUIRES_OK(context, ring.status());
      OP_REQUIRES(context, !ring->dimensions().empty(), absl::InvalidArgumentError("A ring has one axis at least."));
      const absl::StatusOr<xla::XlaOp> written =
          Call(context->builder(), "ipu_ring_write", {context->Input(i), context->Input(rings + i), place, behind},
               Plain(*ring), /*in_place=*/true);
      OP_REQUIRES_OK(context, written.status());
      context->SetOutput(i, *written);
    }
  }
};

REGISTER_XLA_OP(Name("IpuRingZeros"), RingZerosXla);
REGISTER_XLA_OP(Name("IpuRingRead"), RingReadXla);
REGISTER_XLA_OP(Name("IpuRingWrite"), RingWriteXla);

}  // namespace
}  // namespace tensorflow_ipu
