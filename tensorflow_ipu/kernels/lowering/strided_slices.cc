// Slices whose positions are known only at run time: `x[i]`, `x[1:3, i]`, `x[i:i + 8]`, their gradients, and
// `variable[i].assign(y)`.
//
// XLA's kernels assign only at positions that are known at compile time. In reads they ignore where a known range
// begins, as in `x[1:3, i]`. They give `x[i:i + 8]` as many elements as `x` has, with a count that is known at run
// time.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/compiler/tf2xla/lib/broadcast.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/util/strided_slice_op.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "tensorflow_ipu/kernels/lowering/host_kernel.h"
#include "tensorflow_ipu/kernels/lowering/program_kernels.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/lib/dynamic_shaped_ops.h"
#include "xla/hlo/builder/value_inference.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/literal.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

using Sizes = std::vector<int64_t>;

// The attribute of a node with the length of each range, which is its end minus its begin; 0 if it is not known when
// the program is traced. `programs/_slices.py` sets it.
constexpr char kLengthsAttribute[] = "_ipu_lengths";

// The inputs of all ops in this file. The first is the sliced tensor, a variable or, for a gradient, the shape.
constexpr int kSliced = 0, kBegin = 1, kEnd = 2, kStrides = 3, kValue = 4;

bool Has(int32_t mask, int bit) { return ((mask >> bit) & 1) != 0; }

absl::StatusOr<tf::TensorShape> StaticShape(tf::XlaOpKernelContext* context, int input) {
  TF_ASSIGN_OR_RETURN(const xla::Shape shape, context->InputXlaShape(input));
  if (shape.is_dynamic()) return absl::InvalidArgumentError("its shape depends on data");
  return tf::TensorShape(shape.dimensions());
}

xla::XlaOp Number(xla::XlaOp like, int64_t value) { return xla::ScalarLike(like, value); }

// A begin, an end or an index.
struct Place {
  xla::XlaOp op;  // Valid whether or not `known` is set.
  std::optional<int64_t> known;
  xla::XlaOp original = op;  // As in the program: a negative position counts from the end of the axis.
};

// The elements of a slice along one axis of the sliced tensor.
struct Axis {
  xla::XlaOp first;  // The lowest position.
  int64_t elements;
  int64_t stride;
  // Set if the number of elements is known only at run time. Then `elements` is the maximum.
  std::optional<xla::XlaOp> count;

  int64_t step() const { return std::abs(stride); }
  int64_t span() const { return elements == 0 ? 0 : (elements - 1) * step() + 1; }
};

struct Region {
  std::vector<Axis> axes;  // Of the sliced tensor.
  Sizes shape;             // Of the slice: without the axes that an index drops, and with new axes of one element.
  Sizes axis_of;           // The axis of each dimension of the slice; negative for a new one.

  template <typename Of>
  auto Each(Of of) const {
    std::vector<std::decay_t<std::invoke_result_t<Of, const Axis&>>> values;
    for (const Axis& axis : axes) values.push_back(std::invoke(of, axis));
    return values;
  }
  std::vector<xla::XlaOp> Firsts() const { return Each(&Axis::first); }
  Sizes Elements() const { return Each(&Axis::elements); }
  Sizes Spans() const { return Each(&Axis::span); }
  Sizes Steps() const { return Each(&Axis::step); }
  Sizes Reversed() const {
    Sizes reversed;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (axes[i].stride < 0) reversed.push_back(static_cast<int64_t>(i));
    }
    return reversed;
  }
  bool IsEmpty() const { return std::count(shape.begin(), shape.end(), 0) > 0; }
};

// Returns the type of positions. Sizes need not fit into an int16.
xla::PrimitiveType PlaceType(tf::XlaOpKernelContext* context) {
  const xla::PrimitiveType type = context->input_xla_type(kStrides);
  return type == xla::S16 ? xla::S32 : type;
}

// Reads an element of the begins or ends.
Place PlaceAt(tf::XlaOpKernelContext* context, int input, int64_t element, int64_t size) {
  const xla::XlaOp original = xla::Reshape(xla::Slice(context->Input(input), {element}, {element + 1}, {1}), Sizes());
  const xla::XlaOp place = xla::ConvertElementType(original, PlaceType(context));
  // `AnalyzeConstant` fails at some operations. The position is then treated as unknown.
  absl::StatusOr<xla::OptionalLiteral> literal =
      context->value_inference().AnalyzeConstant(place, xla::ValueInferenceMode::kValue);
  if (!literal.ok() || !literal->AllValid()) {
    return Place{xla::Select(xla::Lt(place, Number(place, 0)), place + Number(place, size), place), {}, place};
  }
  const int64_t known = *literal->GetValue()->GetIntegralAsS64({});
  const int64_t wrapped = known < 0 ? known + size : known;
  return Place{Number(place, wrapped), wrapped, place};
}

Place Bounded(const Place& place, int64_t lowest, int64_t highest) {
  const xla::XlaOp op = xla::Clamp(Number(place.op, lowest), place.op, Number(place.op, highest));
  if (!place.known) return {op, {}, place.original};
  const int64_t known = std::clamp(*place.known, lowest, highest);
  return {Number(place.op, known), known, place.original};
}

// Returns the number of elements of a range of this length.
int64_t Count(int64_t length, int64_t stride) {
  return std::max<int64_t>(0, (length + stride - (stride < 0 ? -1 : 1)) / stride);
}

xla::XlaOp Count(xla::XlaOp length, int64_t stride) {
  const xla::XlaOp count = (length + Number(length, stride - (stride < 0 ? -1 : 1))) / Number(length, stride);
  return xla::Max(count, Number(length, 0));
}

// Returns `place` with a dependency on its check. So no element is assigned before the check.
xla::XlaOp Checked(tf::XlaOpKernelContext* context, xla::XlaOp place, xla::XlaOp holds,
                   const std::vector<PartOfMessage>& message) {
  return xla::Select(AtRunTime(context, CallAssertion(context, holds, message)), place, Number(place, 0));
}

// Returns the tensor with `value` in the region.
absl::StatusOr<xla::XlaOp> Assigned(xla::XlaOp tensor, xla::XlaOp value, const Region& region) {
  xla::XlaBuilder* const builder = tensor.builder();
  TF_ASSIGN_OR_RETURN(const xla::Shape value_shape, builder->GetShape(value));
  Sizes shape(value_shape.dimensions().begin(), value_shape.dimensions().end());
  while (shape.size() > region.shape.size() && shape.front() == 1) shape.erase(shape.begin());
  TF_ASSIGN_OR_RETURN(value, tf::BroadcastTo(xla::Reshape(value, shape), region.shape));
  if (region.IsEmpty()) return tensor;
  value = xla::Rev(xla::Reshape(value, region.Elements()), region.Reversed());
  const Sizes steps = region.Steps();
  if (std::any_of(steps.begin(), steps.end(), [](int64_t step) { return step > 1; })) {
    xla::PaddingConfig gaps;
    for (const int64_t step : steps) {
      gaps.add_dimensions()->set_interior_padding(step - 1);
    }
    const xla::XlaOp yes = xla::ConstantR0<bool>(builder, true), no = xla::ConstantR0<bool>(builder, false);
    const xla::XlaOp assigned = xla::Pad(xla::Broadcast(yes, region.Elements()), no, gaps);
    const xla::XlaOp before = xla::DynamicSlice(tensor, region.Firsts(), region.Spans());
    value = xla::Select(assigned, xla::Pad(value, xla::ScalarLike(value, 0), gaps), before);
  }
  return xla::DynamicUpdateSlice(tensor, value, region.Firsts());
}

// The slice of the node being lowered.
class Slicing {
 public:
  explicit Slicing(tf::XlaOpKernelContext* context) : context_(context) {}

  // Selects the positions that a run checks. Other positions are moved into the tensor, as XLA does.
  enum class Checks { kNone, kRanges, kAll };

  // Returns true if XLA's kernel suffices: all positions are known, and no lengths are recorded (see
  // `kLengthsAttribute`).
  bool XlaSuffices() const {
    return lengths_.empty() && context_->ConstantInputTensor(kBegin).ok() && context_->ConstantInputTensor(kEnd).ok();
  }

  // Returns the region of the slice. `value` is the shape of the assigned tensor, or of the slice's gradient. It
  // determines the number of elements of ranges of unknown length.
  absl::StatusOr<Region> RegionOf(const tf::TensorShape& sliced, Checks checks,
                                  const tf::TensorShape* value = nullptr) const {
    TF_ASSIGN_OR_RETURN(const tf::Tensor strides_tensor, context_->ConstantInputTensor(kStrides));
    tf::PartialTensorShape processed, shape;
    bool unused = false;
    absl::InlinedVector<int64_t, 4> begins, ends, strides;
    tf::StridedSliceShapeSpec spec;
    TF_RETURN_IF_ERROR(tf::ValidateStridedSliceOp(nullptr, nullptr, strides_tensor, sliced, Mask("begin_mask"),
                                                  Mask("end_mask"), Mask("ellipsis_mask"), Mask("new_axis_mask"),
                                                  Mask("shrink_axis_mask"), &processed, &shape, &unused, &unused,
                                                  &unused, &begins, &ends, &strides, &spec));
    Region region;
    region.axis_of.assign(spec.output_to_processing_mapping.begin(), spec.output_to_processing_mapping.end());
    const auto rank = static_cast<int64_t>(region.axis_of.size());
    for (int i = 0; i < sliced.dims(); ++i) {
      const auto dimension = std::find(region.axis_of.begin(), region.axis_of.end(), i);
      const int64_t from_last = region.axis_of.end() - dimension;  // 0 for an axis that is dropped.
      std::optional<int64_t> elements;
      if (value != nullptr && 0 < from_last && from_last <= value->dims()) {
        elements = value->dim_size(value->dims() - static_cast<int>(from_last));
      }
      TF_ASSIGN_OR_RETURN(Axis axis, AxisOf(spec, i, sliced.dim_size(i), strides[i], elements, checks));
      region.axes.push_back(std::move(axis));
    }
    for (int64_t i = 0; i < rank; ++i) {
      region.shape.push_back(region.axis_of[i] < 0 ? 1 : region.axes[region.axis_of[i]].elements);
    }
    return region;
  }

 private:
  absl::StatusOr<Axis> AxisOf(const tf::StridedSliceShapeSpec& spec, int number, int64_t size, int64_t stride,
                              std::optional<int64_t> elements, Checks checks) const {
    const int64_t element = spec.processing_to_sparse_mapping[number];
    const std::string of_axis = absl::StrCat("of an axis of ", size, " elements");
    if (Has(spec.shrink_axis_dense_mask, number)) {
      const Place index = PlaceAt(context_, kBegin, element, size);
      if (index.known && (*index.known < 0 || *index.known >= size)) {
        return absl::InvalidArgumentError(absl::StrCat("slice index out of bounds: ", *index.known, " ", of_axis));
      }
      if (!index.known && checks == Checks::kAll) {
        const xla::XlaOp inside =
            xla::And(xla::Ge(index.op, Number(index.op, 0)), xla::Lt(index.op, Number(index.op, size)));
        return Axis{Checked(context_, index.op, inside, {{"slice index out of bounds:"}, {index.original}, {of_axis}}),
                    1,
                    1,
                    {}};
      }
      return Axis{index.op, 1, 1, {}};
    }
    const bool backward = stride < 0;
    const int64_t lowest = backward ? -1 : 0, highest = backward ? size - 1 : size;
    const auto place = [&](int input, int32_t mask, int64_t masked) {
      if (Has(mask, number)) {
        return Place{xla::ConstantR0WithType(context_->builder(), PlaceType(context_), masked), masked};
      }
      return Bounded(PlaceAt(context_, input, element, size), lowest, highest);
    };
    const Place begin = place(kBegin, spec.begin_dense_mask, backward ? highest : lowest);
    const Place end = place(kEnd, spec.end_dense_mask, backward ? lowest : highest);
    const int64_t length = 0 <= element && element < static_cast<int64_t>(lengths_.size()) ? lengths_[element] : 0;
    if (length != 0) elements = Count(length, stride);
    const std::string requirement = absl::StrCat("must have ", elements.value_or(0), " of the ", size,
                                                 " elements of its axis, as in every run of a program");
    xla::XlaOp first = begin.op;
    std::optional<xla::XlaOp> count;
    if (begin.known && end.known) {
      const int64_t counted = Count(*end.known - *begin.known, stride);
      if (length != 0 && counted != *elements) {
        return absl::InvalidArgumentError(
            absl::StrCat("a slice from ", *begin.known, " to ", *end.known, " ", requirement));
      }
      elements = counted;
    } else if (!elements) {
      if (stride != 1)
        return absl::InvalidArgumentError("a slice whose length is known only at run time must have a stride of 1");
      elements = size;
      count = xla::Max(end.op - begin.op, Number(begin.op, 0));
    } else if (checks != Checks::kNone) {
      const xla::XlaOp holds = xla::Eq(Count(end.op - begin.op, stride), Number(begin.op, *elements));
      first =
          Checked(context_, first, holds, {{"a slice from"}, {begin.original}, {"to"}, {end.original}, {requirement}});
    }
    if (backward) first = first + Number(first, (*elements - 1) * stride);
    return Axis{first, *elements, stride, count};
  }

  int32_t Mask(const char* name) const { return AttributeOf<int32_t>(context_, name); }

  tf::XlaOpKernelContext* const context_;
  const Sizes lengths_ = tf::GetNodeAttr<Sizes>(context_->op_kernel().def(), kLengthsAttribute).value_or(Sizes());
};

absl::Status LowerStridedSlice(tf::XlaOpKernelContext* context) {
  const Slicing slicing(context);
  const absl::StatusOr<tf::TensorShape> sliced = StaticShape(context, kSliced);
  if (!sliced.ok() || slicing.XlaSuffices()) {
    LowerAsXla(context);
    return absl::OkStatus();
  }
  TF_ASSIGN_OR_RETURN(const Region region, slicing.RegionOf(*sliced, Slicing::Checks::kRanges));
  xla::XlaOp value = context->Input(kSliced);
  if (region.IsEmpty()) {
    context->SetOutput(0, xla::Broadcast(xla::ScalarLike(value, 0), region.shape));
    return absl::OkStatus();
  }
  // Pads the axis, so that all elements exist, whether they are counted or not.
  for (std::size_t i = 0; i < region.axes.size(); ++i) {
    const Axis& axis = region.axes[i];
    if (!axis.count) continue;
    value = xla::PadInDim(value, xla::ScalarLike(value, 0), static_cast<int64_t>(i), 0, axis.elements);
  }
  value = xla::DynamicSlice(value, region.Firsts(), region.Spans());
  value = xla::Slice(value, Sizes(region.axes.size(), 0), region.Spans(), region.Steps());
  value = xla::Reshape(xla::Rev(value, region.Reversed()), region.shape);
  for (std::size_t i = 0; i < region.shape.size(); ++i) {
    if (region.axis_of[i] < 0 || !region.axes[region.axis_of[i]].count) continue;
    const xla::XlaOp count = xla::ConvertElementType(*region.axes[region.axis_of[i]].count, xla::S32);
    TF_ASSIGN_OR_RETURN(
        value, xla::SetDimensionSizeWithRebound(&context->value_inference(), value, count, static_cast<int64_t>(i)));
  }
  context->SetOutput(0, value);
  return absl::OkStatus();
}

absl::Status LowerStridedSliceGrad(tf::XlaOpKernelContext* context) {
  const Slicing slicing(context);
  tf::TensorShape sliced;
  const bool is_static = context->ConstantInputAsShape(kSliced, &sliced).ok();
  const absl::StatusOr<tf::TensorShape> shape = StaticShape(context, kValue);
  if (!is_static || !shape.ok() || slicing.XlaSuffices()) {
    LowerAsXla(context);
    return absl::OkStatus();
  }
  TF_ASSIGN_OR_RETURN(const Region region, slicing.RegionOf(sliced, Slicing::Checks::kNone, &*shape));
  const xla::XlaOp value = context->Input(kValue);
  const xla::XlaOp zeros = xla::Broadcast(xla::ScalarLike(value, 0), sliced.dim_sizes());
  TF_ASSIGN_OR_RETURN(const xla::XlaOp assigned, Assigned(zeros, value, region));
  context->SetOutput(0, assigned);
  return absl::OkStatus();
}

// Lowers `ResourceStridedSliceAssign` and `TensorStridedSliceUpdate`.
absl::Status LowerStridedSliceAssign(tf::XlaOpKernelContext* context) {
  const bool is_variable = context->input_type(kSliced) == tf::DT_RESOURCE;
  const tf::DataType type = context->input_type(kValue);
  TF_ASSIGN_OR_RETURN(const tf::TensorShape shape, StaticShape(context, kValue));
  tf::TensorShape sliced;
  xla::XlaOp before;
  if (is_variable) {
    TF_RETURN_IF_ERROR(context->ReadVariableInput(kSliced, type, &sliced, &before));
  } else {
    TF_ASSIGN_OR_RETURN(sliced, StaticShape(context, kSliced));
    before = context->Input(kSliced);
  }
  TF_ASSIGN_OR_RETURN(const Region region, Slicing(context).RegionOf(sliced, Slicing::Checks::kAll, &shape));
  for (const Axis& axis : region.axes) {
    if (!axis.count) continue;
    // XLA's message, which `programs/diagnostics/faults.py` recognizes.
    return absl::InvalidArgumentError(absl::StrCat("Input ", kEnd, " to node `", context->op_kernel().name(),
                                                   "` with op ", context->op_kernel().type_string(),
                                                   " must be a compile-time constant."));
  }
  TF_ASSIGN_OR_RETURN(const xla::XlaOp after, Assigned(before, context->Input(kValue), region));
  if (is_variable) return context->AssignVariable(kSliced, type, after);
  context->SetOutput(0, after);
  return absl::OkStatus();
}

const bool slices_registered = RegisterProgramKernel<Lowering<LowerStridedSlice>>("StridedSlice") &&
                               RegisterProgramKernel<Lowering<LowerStridedSliceGrad>>("StridedSliceGrad") &&
                               RegisterProgramKernel<Lowering<LowerStridedSliceAssign>>("ResourceStridedSliceAssign") &&
                               RegisterProgramKernel<Lowering<LowerStridedSliceAssign>>("TensorStridedSliceUpdate");

}  // namespace
}  // namespace tensorflow_ipu
