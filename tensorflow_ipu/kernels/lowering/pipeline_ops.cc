// The ops of pipelines.
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
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "tensorflow_ipu/kernels/lowering/host_kernel.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

// Computes the loop indices of a pipeline: the micro-batches that an iteration processes, and their slots in the stash
// buffers. One custom call computes them for all instructions of the iteration. If they were XLA's arithmetic, XLA
// would compile a kernel for each index, since they differ in their constants.
//
// Attributes specify micro-batches as offsets from `base`. The micro-batches 0 to `count` - 1 exist.
//   numbers[i] = base + number_of[i]
//   slots[i] = (base + slot_of[i]) mod depths[i]
//   predicates[i]: micro-batch first[i] exists. If kinds[i] is 1, second[i] must exist too; if it is 2, it must not.
REGISTER_OP("IpuLoopIndices")
    .Input("base: int32")
    .Input("count: int32")
    .Output("numbers: N * int32")
    .Output("slots: P * int32")
    .Output("predicates: S * bool")
    .Attr("N: int >= 0")
    .Attr("P: int >= 0")
    .Attr("S: int >= 0")
    .Attr("number_of: list(int) >= 0")
    .Attr("slot_of: list(int) >= 0")
    .Attr("depths: list(int) >= 0")
    .Attr("first: list(int) >= 0")
    .Attr("second: list(int) >= 0")
    .Attr("kinds: list(int) >= 0")
    .SetShapeFn(Scalars);

absl::Status LowerLoopIndices(tf::XlaOpKernelContext* context) {
  std::vector<std::pair<const char*, CallValue>> attributes;
  for (const char* const name : {"number_of", "slot_of", "depths", "first", "second", "kinds"}) {
    attributes.emplace_back(name, AttributeOf<std::vector<int64_t>>(context, name));
  }
  std::vector<xla::Shape> results;
  for (int i = 0; i < context->num_outputs(); ++i) {
    const bool is_number = context->expected_output_dtype(i) == tf::DT_INT32;
    results.push_back(xla::ShapeUtil::MakeShape(is_number ? xla::S32 : xla::PRED, {}));
  }
  const xla::XlaOp indices = TypedCall(context->builder(), "ipu_loop_indices", {context->Input(0), context->Input(1)},
                                       xla::ShapeUtil::MakeTupleShape(results), CallAttributes(attributes));
  for (int i = 0; i < context->num_outputs(); ++i) context->SetOutput(i, ResultOf(context, indices, i));
  return absl::OkStatus();
}

REGISTER_XLA_OP(Name("IpuLoopIndices"), Lowering<LowerLoopIndices>);

// Checks `count` at run time, and returns it. `count` is a number of micro-batches, or of iterations over them. It must
// be a multiple of `multiple` from `least` to `largest`. Otherwise the run fails with a message that consists of
// `before`, `count` and `after`.
REGISTER_OP("IpuMicroBatches")
    .Input("count: int64")
    .Output("checked: int64")
    .Attr("multiple: int >= 1")
    .Attr("least: int >= 0")
    .Attr("largest: int >= 0")
    .Attr("before: string")
    .Attr("after: string")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

absl::Status LowerMicroBatches(tf::XlaOpKernelContext* context) {
  const std::string attributes = CallAttributes({{"multiple", AttributeOf<int64_t>(context, "multiple")},
                                                 {"least", AttributeOf<int64_t>(context, "least")},
                                                 {"largest", AttributeOf<int64_t>(context, "largest")},
                                                 {"before", AttributeOf<std::string>(context, "before")},
                                                 {"after", AttributeOf<std::string>(context, "after")}});
  const xla::XlaOp checked = TypedCall(context->builder(), "ipu_micro_batches", {context->Input(0)},
                                       xla::ShapeUtil::MakeShape(xla::S64, {}), attributes, /*has_side_effect=*/true);
  context->SetOutput(0, AtRunTime(context, checked));
  return absl::OkStatus();
}

REGISTER_XLA_OP(Name("IpuMicroBatches").IsMetadataOp(), Lowering<LowerMicroBatches>);

// Joins independent orders: each use of the states after this op runs after all uses before it.
REGISTER_OP("IpuJoinOrders")
    .Input("states: N * resource")
    .Attr("N: int >= 1")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

// A custom call returns each state unchanged. Operations of XLA would be compiled for each such op.
absl::Status LowerJoinOrders(tf::XlaOpKernelContext* context) {
  std::vector<xla::XlaOp> states;
  std::vector<xla::Shape> shapes;
  std::vector<Alias> in_place;
  for (int i = 0; i < context->num_inputs(); ++i) {
    tf::TensorShape shape;
    TF_RETURN_IF_ERROR(context->ReadVariableInput(i, tf::DT_INT64, &shape, &states.emplace_back()));
    shapes.push_back(xla::ShapeUtil::MakeShape(xla::S64, shape.dim_sizes()));
    in_place.push_back({{i}, {i, {}}});
  }
  const xla::XlaOp joined =
      TypedCall(context->builder(), "ipu_join_orders", states, xla::ShapeUtil::MakeTupleShape(shapes),
                /*attributes=*/"", /*has_side_effect=*/false, in_place);
  for (int i = 0; i < context->num_inputs(); ++i) {
    TF_RETURN_IF_ERROR(context->AssignVariable(i, tf::DT_INT64, xla::GetTupleElement(joined, i)));
  }
  return absl::OkStatus();
}

REGISTER_XLA_OP(Name("IpuJoinOrders").IsMetadataOp(), Lowering<LowerJoinOrders>);

// `IpuStashZeros`, `IpuStashRead` and `IpuStashWrite`: buffers that store a tensor for several micro-batches. Reads
// below 256 KiB and all writes are custom calls, one per tensor. XLA would compile a kernel for each slice and each
// depth, and the stages of a pipeline differ in depth. One call for all tensors would need the memory of all values at
// once. Larger values are read by slices, because XLA reads a slice in place and a call would copy it.
REGISTER_OP("IpuStashZeros")
    .Output("stashes: T")
    .Attr("T: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .SetShapeFn(StatedShapes);

// Reads a slot of tensors [depth, ...] as tensors [...]. `token` is 0, and becomes available when the slot may be used.
REGISTER_OP("IpuStashRead")
    .Input("stashes: T")
    .Input("slot: int32")
    .Input("token: int32")
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

// Writes values [...] to a slot of tensors [depth, ...]. `token` is as above.
REGISTER_OP("IpuStashWrite")
    .Input("stashes: T")
    .Input("values: T")
    .Input("slot: int32")
    .Input("token: int32")
    .Output("written: T")
    .Attr("T: list(type) >= 1")
    .SetShapeFn(ShapesOfInputs<>);

// From this size on, XLA reads a slice in place, which is faster than a copy. Writes are calls at any size, because
// their threads share large copies: XLA does not divide an update in place among threads.
constexpr int64_t kLarge = 256 << 10;

bool IsLarge(const xla::Shape& value) { return xla::ShapeUtil::ByteSizeOf(value) >= kLarge; }

absl::StatusOr<xla::XlaOp> Read(tf::XlaOpKernelContext* context, xla::XlaOp stash, const xla::Shape& shape,
                                xla::XlaOp slot, xla::XlaOp token) {
  xla::XlaBuilder* const builder = context->builder();
  const xla::Shape value = xla::ShapeUtil::DeleteDimension(0, shape);
  if (!IsLarge(value)) return AtRunTime(context, TypedCall(builder, "ipu_stash_read", {stash, slot, token}, value));
  slot = slot + token;
  std::vector<xla::XlaOp> begin(shape.dimensions().size(), xla::ConstantR0<int32_t>(builder, 0));
  begin[0] = slot;
  std::vector<int64_t> sizes(shape.dimensions().begin(), shape.dimensions().end());
  sizes[0] = 1;
  const xla::XlaOp value_in_slot = xla::Reshape(xla::DynamicSlice(stash, begin, sizes), value.dimensions());
  TF_RETURN_IF_ERROR(NoteStashSlot(context, value_in_slot, {stash, slot}));
  return value_in_slot;
}

absl::Status LowerStashZeros(tf::XlaOpKernelContext* context) {
  std::vector<xla::Shape> stashes;
  for (const tf::TensorShape& shape : AttributeOf<std::vector<tf::TensorShape>>(context, "output_shapes")) {
    const tf::DataType type = context->expected_output_dtype(static_cast<int>(stashes.size()));
    TF_RETURN_IF_ERROR(tf::TensorShapeToXLAShape(type, shape, &stashes.emplace_back()));
  }
  const xla::XlaOp zeros =
      TypedCall(context->builder(), "ipu_stash_zeros", {}, xla::ShapeUtil::MakeTupleShape(stashes));
  for (int i = 0; i < context->num_outputs(); ++i) context->SetOutput(i, xla::GetTupleElement(zeros, i));
  return absl::OkStatus();
}

// Lowers a read or a write, one stash buffer at a time.
absl::Status LowerStashUse(tf::XlaOpKernelContext* context) {
  const int stashes = context->num_outputs();
  const xla::XlaOp slot = context->Input(context->num_inputs() - 2);
  const xla::XlaOp token = context->Input(context->num_inputs() - 1);
  for (int i = 0; i < stashes; ++i) {
    TF_ASSIGN_OR_RETURN(const xla::Shape stash, context->InputXlaShape(i));
    if (stash.dimensions().empty()) return absl::InvalidArgumentError("A stash buffer must have at least one axis.");
    if (context->op_kernel().type_string_view() == "IpuStashRead") {
      TF_ASSIGN_OR_RETURN(const xla::XlaOp value, Read(context, context->Input(i), stash, slot, token));
      context->SetOutput(i, value);
      continue;
    }
    const std::vector<xla::XlaOp> operands = {context->Input(i), context->Input(stashes + i), slot, token};
    const std::vector<Alias> in_place = {{{}, {0, {}}}};
    context->SetOutput(i, TypedCall(context->builder(), "ipu_stash_write", operands, stash, /*attributes=*/"",
                                    /*has_side_effect=*/false, in_place));
  }
  return absl::OkStatus();
}

REGISTER_XLA_OP(Name("IpuStashZeros"), Lowering<LowerStashZeros>);
REGISTER_XLA_OP(Name("IpuStashRead"), Lowering<LowerStashUse>);
REGISTER_XLA_OP(Name("IpuStashWrite"), Lowering<LowerStashUse>);

}  // namespace
}  // namespace tensorflow_ipu
