#include "tensorflow_ipu/kernels/precision/rewrite.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "tensorflow_ipu/kernels/numerics/partials.h"
#include "tensorflow_ipu/kernels/precision/emit.h"
#include "xla/hlo/ir/hlo_casting_utils.h"
#include "xla/hlo/ir/hlo_instructions.h"
#include "xla/layout_util.h"

namespace tensorflow_ipu::precision {

namespace {

using core::BlockedProducts;
using Axes = std::vector<int64_t>;

constexpr char kTypeOfPartials[] = "ipu_partials_type";
constexpr char kProducts[] = "ipu_partial_products";

// A call with two row-major operands. Its result is transposed by `order`.
struct Call {
  BlockedProducts product{};
  Value left = nullptr;
  Value right = nullptr;
  xla::Shape result;  // In float32.
  Axes order;
};

int64_t SizeOf(const xla::Shape& shape, absl::Span<const int64_t> axes) {
  return std::accumulate(axes.begin(), axes.end(), int64_t{1},
                         [&](int64_t size, int64_t axis) { return size * shape.dimensions(axis); });
}

// Returns the axes that are in neither of two lists.
Axes Others(const xla::Shape& shape, absl::Span<const int64_t> some, absl::Span<const int64_t> more) {
  Axes others;
  for (int64_t axis = 0; axis < static_cast<int64_t>(shape.dimensions().size()); ++axis) {
    if (!absl::c_linear_search(some, axis) && !absl::c_linear_search(more, axis)) others.push_back(axis);
  }
  return others;
}

Axes Joined(absl::Span<const Axes> lists) {
  Axes joined;
  for (const Axes& list : lists) joined.insert(joined.end(), list.begin(), list.end());
  return joined;
}

xla::Shape Permuted(const xla::Shape& shape, const Axes& order, xla::PrimitiveType type) {
  Axes sizes;
  for (const int64_t axis : order) sizes.push_back(shape.dimensions(axis));
  return xla::ShapeUtil::MakeShape(type, sizes);
}

Value Transposed(const Emit& emit, Value value, const Axes& order) {
  if (std::is_sorted(order.begin(), order.end())) return value;
  const xla::Shape shape = Permuted(value->shape(), order, value->shape().element_type());
  return emit.Add(xla::HloInstruction::CreateTranspose(shape, value, order));
}

Call CallOfDot(const Emit& emit, xla::HloInstruction& dot) {
  const xla::DotDimensionNumbers& axes = dot.dot_dimension_numbers();
  const auto list = [](const auto& numbers) { return Axes(numbers.begin(), numbers.end()); };
  const Value left = dot.mutable_operand(0);
  const Value right = dot.mutable_operand(1);
  const Axes left_batch = list(axes.lhs_batch_dimensions()), right_batch = list(axes.rhs_batch_dimensions());
  const Axes left_summed = list(axes.lhs_contracting_dimensions()),
             right_summed = list(axes.rhs_contracting_dimensions());
  const Axes rows = Others(left->shape(), left_batch, left_summed);
  const Axes columns = Others(right->shape(), right_batch, right_summed);
  Call call;
  call.left = Transposed(emit, left, Joined({left_batch, rows, left_summed}));
  call.right = Transposed(emit, right, Joined({right_batch, right_summed, columns}));
  call.result = Emit::Typed(&dot, xla::F32);
  BlockedProducts& product = call.product;
  product.groups = SizeOf(left->shape(), left_batch);
  product.images = SizeOf(left->shape(), rows);
  product.channels = SizeOf(left->shape(), left_summed);
  product.features = SizeOf(right->shape(), columns);
  product.left_stride = product.channels;
  product.right_stride = product.out_stride = product.features;
  product.group_left = product.images * product.channels;
  product.group_right = product.channels * product.features;
  product.group_out = product.images * product.features;
  return call;
}

Call CallOfConvolution(const Emit& emit, xla::HloInstruction& convolution) {
  const xla::ConvolutionDimensionNumbers& axes = convolution.convolution_dimension_numbers();
  const Value images = convolution.mutable_operand(0);
  Value filter = convolution.mutable_operand(1);
  const xla::Window& window = convolution.window();
  Axes reversed_axes;
  for (int i = 0; i < window.dimensions_size(); ++i) {
    if (window.dimensions(i).window_reversal()) reversed_axes.push_back(axes.kernel_spatial_dimensions(i));
  }
  if (!reversed_axes.empty())
    filter = emit.Add(xla::HloInstruction::CreateReverse(filter->shape(), filter, reversed_axes));
  const auto list = [](const auto& numbers) { return Axes(numbers.begin(), numbers.end()); };
  const Axes of_images =
      Joined({{axes.input_batch_dimension()}, list(axes.input_spatial_dimensions()), {axes.input_feature_dimension()}});
  const Axes of_filter = Joined({list(axes.kernel_spatial_dimensions()),
                                 {axes.kernel_input_feature_dimension()},
                                 {axes.kernel_output_feature_dimension()}});
  const Axes of_result = Joined(
      {{axes.output_batch_dimension()}, list(axes.output_spatial_dimensions()), {axes.output_feature_dimension()}});
  Call call;
  call.left = Transposed(emit, images, of_images);
  call.right = Transposed(emit, filter, of_filter);
  call.result = Permuted(convolution.shape(), of_result, xla::F32);
  call.order.resize(of_result.size());
  for (std::size_t i = 0; i < of_result.size(); ++i) call.order[of_result[i]] = static_cast<int64_t>(i);
  BlockedProducts& product = call.product;
  // Groups of features, each with separate filters; or groups of images, in gradients of grouped filters.
  const int64_t by_features = convolution.feature_group_count();
  const int64_t by_images = convolution.batch_group_count();
  const int64_t features = filter->shape().dimensions(axes.kernel_output_feature_dimension());
  product.groups = by_features * by_images;
  product.images = images->shape().dimensions(axes.input_batch_dimension()) / by_images;
  product.channels = filter->shape().dimensions(axes.kernel_input_feature_dimension());
  product.features = features / product.groups;
  product.left_stride = product.channels * by_features;
  product.right_stride = product.out_stride = features;
  product.group_right = product.group_out = product.features;
  for (int i = 0; i < window.dimensions_size(); ++i) {
    const xla::WindowDimension& dimension = window.dimensions(i);
    const int axis = 3 - window.dimensions_size() + i;  // With fewer dimensions, the first ones have size 1.
    product.in[axis] = images->shape().dimensions(axes.input_spatial_dimensions(i));
    product.filter[axis] = dimension.size();
    product.out[axis] = convolution.shape().dimensions(axes.output_spatial_dimensions(i));
    product.strides[axis] = dimension.stride();
    product.before[axis] = dimension.padding_low();
    product.input_gaps[axis] = dimension.base_dilation();
    product.filter_gaps[axis] = dimension.window_dilation();
  }
  const int64_t places = product.in[0] * product.in[1] * product.in[2];
  product.group_left = by_images > 1 ? product.images * places * product.channels : product.channels;
  return call;
}

// Returns the type of partial sums of an instruction; empty if none is set.
std::string PartialsOf(const Options& options, const xla::HloInstruction& instruction) {
  const auto& attributes = instruction.frontend_attributes().map();
  const auto own = attributes.find(kTypeOfPartials);
  if (own != attributes.end()) return own->second;
  // XLA has already replaced convolutions by a filter of one element by products.
  const std::string& op = instruction.metadata().op_type();
  const bool convolves = instruction.opcode() == xla::HloOpcode::kConvolution || absl::StartsWith(op, "Conv");
  return convolves ? options.conv_partials : options.matmul_partials;
}

bool IsProductOfHalves(const xla::HloInstruction& instruction) {
  const bool convolves = instruction.opcode() == xla::HloOpcode::kConvolution;
  if (!convolves && instruction.opcode() != xla::HloOpcode::kDot) return false;
  if (convolves && instruction.window().dimensions_size() > 3) return false;
  const xla::PrimitiveType type = instruction.shape().element_type();
  if (type != xla::F16 && type != xla::F32) return false;
  if (instruction.shape().is_dynamic() || xla::ShapeUtil::IsZeroElementArray(instruction.shape())) return false;
  return absl::c_all_of(instruction.operands(), [](const xla::HloInstruction* operand) {
    const xla::Shape& shape = operand->shape();
    return shape.element_type() == xla::F16 && !shape.is_dynamic() && !xla::ShapeUtil::IsZeroElementArray(shape);
  });
}

// Returns the value that half partial sums get on overflow. If overflow stops the program, the value does not matter.
core::Overflow OverflowOf(const Options& options) {
  if (options.oflo) return core::Overflow::kInfinite;
  return options.nanoo ? core::Overflow::kNan : core::Overflow::kLargest;
}

absl::Status Rewrite(const std::string& partials, core::Overflow overflow, xla::HloInstruction* instruction) {
  const Emit emit(instruction->parent(), instruction);
  const Call call = instruction->opcode() == xla::HloOpcode::kDot ? CallOfDot(emit, *instruction)
                                                                  : CallOfConvolution(emit, *instruction);
  std::array<int64_t, BlockedProducts::kNumbers> numbers;
  call.product.ToNumbers(numbers.data());
  const auto row_major = [](xla::Shape shape) {
    xla::LayoutUtil::SetToDefaultLayout(&shape);
    return shape;
  };
  const std::vector<xla::Shape> operands = {row_major(call.left->shape()), row_major(call.right->shape())};
  const Value call_instruction = emit.Add(xla::HloInstruction::CreateCustomCall(
      row_major(call.result), {call.left, call.right}, kProducts, operands,
      absl::StrCat("{geometry = array<i64: ", absl::StrJoin(numbers, ", "), ">, half = ",
                   partials == "half" ? "true" : "false", ", overflow = ", static_cast<int>(overflow), " : i64}"),
      xla::CustomCallApiVersion::API_VERSION_TYPED_FFI));
  call_instruction->set_frontend_attributes(instruction->frontend_attributes());
  const Value result =
      emit.Convert(Transposed(emit, call_instruction, call.order), instruction->shape().element_type());
  result->set_frontend_attributes(instruction->frontend_attributes());
  return instruction->parent()->ReplaceInstruction(instruction, result);
}

}  // namespace

absl::Status RewritePartials(const Options& options, xla::HloModule* module) {
  for (xla::HloComputation* const computation : module->computations()) {
    for (xla::HloInstruction* const instruction : computation->MakeInstructionPostOrder()) {
      if (!IsProductOfHalves(*instruction)) continue;
      const std::string partials = PartialsOf(options, *instruction);
      if (!partials.empty()) TF_RETURN_IF_ERROR(Rewrite(partials, OverflowOf(options), instruction));
    }
  }
  return absl::OkStatus();
}

bool HasHalfPartials(const xla::HloInstruction& instruction) {
  // A call with a key rounds stochastically.
  return instruction.IsCustomCall(kProducts) && instruction.operand_count() == 2 &&
         absl::StrContains(instruction.raw_backend_config_string(), "half = true");
}

Value WithRandomPartials(const Emit& emit, const xla::HloInstruction& call, Key key) {
  std::vector<Value> operands(call.operands().begin(), call.operands().end());
  std::vector<xla::Shape> shapes = xla::Cast<xla::HloCustomCallInstruction>(&call)->operand_shapes_with_layout();
  for (const Value word : {key.first, key.second}) {
    operands.push_back(word);
    shapes.push_back(word->shape());
  }
  return emit.Add(xla::HloInstruction::CreateCustomCall(call.shape(), operands, kProducts, shapes,
                                                        call.raw_backend_config_string(),
                                                        xla::CustomCallApiVersion::API_VERSION_TYPED_FFI));
}

}  // namespace tensorflow_ipu::precision
