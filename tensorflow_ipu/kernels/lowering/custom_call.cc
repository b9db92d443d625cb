#include "tensorflow_ipu/kernels/lowering/custom_call.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow_ipu/kernels/core/program_state.h"
#include "xla/layout_util.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

// The layout of host tensors.
xla::Shape RowMajor(xla::Shape shape) {
  xla::LayoutUtil::SetToDefaultLayout(&shape);
  return shape;
}

// The range of the `order` inputs, which come last: one or none.
std::pair<int, int> OrderOf(const tf::XlaOpKernelContext& context) {
  int begin = 0;
  int end = 0;
  if (context.op_kernel().InputRange("order", &begin, &end).ok()) return {begin, end};
  return {context.num_inputs(), context.num_inputs()};
}

}  // namespace

std::vector<xla::XlaOp> ValuesOf(tf::XlaOpKernelContext* context) {
  const int end = OrderOf(*context).first;
  std::vector<xla::XlaOp> values;
  for (int i = 1; i < end; ++i) values.push_back(context->Input(i));
  return values;
}

std::vector<xla::XlaOp> CallWithState(tf::XlaOpKernelContext* context, const std::string& target,
                                      const std::vector<xla::XlaOp>& operands, const std::vector<xla::Shape>& results,
                                      const std::string& attributes, const CallOptions& options) {
  const auto [order, order_end] = OrderOf(*context);
  const int advanced = options.advance && order < order_end ? order : 0;
  std::vector<xla::XlaOp> arguments;
  for (int input = advanced;; input = 0) {
    tf::TensorShape state_shape;
    xla::XlaOp state;
    const absl::Status read = context->ReadVariableInput(input, tf::DT_INT64, &state_shape, &state);
    if (!read.ok()) {
      context->SetStatus(read);
      return {};
    }
    arguments.push_back(state);
    if (input == 0) break;
  }
  const auto states = static_cast<int64_t>(arguments.size());
  arguments.insert(arguments.end(), operands.begin(), operands.end());
  std::vector<xla::Shape> argument_shapes;
  for (const xla::XlaOp& argument : arguments) {
    const absl::StatusOr<xla::Shape> shape = context->builder()->GetShape(argument);
    if (!shape.ok()) {
      context->SetStatus(shape.status());
      return {};
    }
    argument_shapes.push_back(RowMajor(*shape));
  }
  std::vector<xla::Shape> result_shapes = {xla::ShapeUtil::MakeShape(xla::S64, {core::kProgramStateSize})};
  for (const xla::Shape& shape : results) result_shapes.push_back(RowMajor(shape));
  std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>> aliases(
      options.in_place ? operands.size() : 0);
  for (std::size_t i = 0; i < aliases.size(); ++i) {
    aliases[i].first.push_back(static_cast<int64_t>(i) + 1);
    aliases[i].second.first = static_cast<int64_t>(i) + states;
  }
  if (options.advance) {  // The state is updated in place, so that a loop need not copy it.
    aliases.push_back({{0}, {0, {}}});
  }
  const xla::XlaOp call = xla::CustomCallWithLayout(
      context->builder(), target, arguments, xla::ShapeUtil::MakeTupleShape(result_shapes), argument_shapes, attributes,
      /*has_side_effect=*/true, aliases, /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
      xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  if (options.advance) {
    const absl::Status assigned = context->AssignVariable(advanced, tf::DT_INT64, xla::GetTupleElement(call, 0));
    if (!assigned.ok()) {
      context->SetStatus(assigned);
      return {};
    }
  }
  std::vector<xla::XlaOp> elements;
  for (std::size_t i = 0; i < results.size(); ++i) elements.push_back(xla::GetTupleElement(call, i + 1));
  return elements;
}

absl::Status RefuseEmpty(const char* queue, const xla::Shape& shape) {
  if (!xla::ShapeUtil::IsZeroElementArray(shape)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("A tensor of shape ", xla::ShapeUtil::HumanString(shape),
                                                 " has a dimension of size 0, and an ", queue,
                                                 " queue cannot carry it. Leave it out of the element."));
}

}  // namespace tensorflow_ipu
