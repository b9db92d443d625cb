#include "tensorflow_ipu/kernels/lowering/custom_call.h"

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow_ipu/kernels/support/program_state.h"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/layout_util.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

// Returns the range of the `order` inputs, the last inputs of the op: one or none.
std::pair<int, int> OrderOf(const tf::XlaOpKernelContext& context) {
  int begin = 0;
  int end = 0;
  if (context.op_kernel().InputRange("order", &begin, &end).ok()) return {begin, end};
  return {context.num_inputs(), context.num_inputs()};
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (absl::ascii_isprint(static_cast<unsigned char>(c)) && c != '"' && c != '\\') {
      quoted += c;
    } else {
      absl::StrAppendFormat(&quoted, "\\%02X", static_cast<unsigned char>(c));
    }
  }
  return quoted + "\"";
}

}  // namespace

absl::Status StatedShapes(tf::shape_inference::InferenceContext* context) {
  std::vector<tf::PartialTensorShape> shapes;
  if (!context->GetAttr("output_shapes", &shapes).ok()) TF_RETURN_IF_ERROR(context->GetAttr("shapes", &shapes));
  for (int i = 0; i < context->num_outputs() && i < static_cast<int>(shapes.size()); ++i) {
    tf::shape_inference::ShapeHandle shape;
    TF_RETURN_IF_ERROR(context->MakeShapeFromPartialTensorShape(shapes[i], &shape));
    context->set_output(i, shape);
  }
  return absl::OkStatus();
}

absl::Status Scalars(tf::shape_inference::InferenceContext* context) {
  for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->Scalar());
  return absl::OkStatus();
}

CallValue::CallValue(bool value) : text(value ? "true" : "false") {}
CallValue::CallValue(int64_t value) : text(absl::StrCat(value, " : i64")) {}
CallValue::CallValue(float value) : text(absl::StrFormat("%.9e : f32", value)) {}
CallValue::CallValue(const std::string& value) : text(Quoted(value)) {}
CallValue::CallValue(const std::vector<int64_t>& value)
    : text(absl::StrCat("array<i64", value.empty() ? "" : ": ", absl::StrJoin(value, ", "), ">")) {}

std::string CallAttributes(const std::vector<std::pair<const char*, CallValue>>& attributes) {
  const auto append = [](std::string* text, const auto& attribute) {
    absl::StrAppend(text, attribute.first, " = ", attribute.second.text);
  };
  return absl::StrCat("{", absl::StrJoin(attributes, ", ", append), "}");
}

xla::XlaOp TypedCall(xla::XlaBuilder* builder, const std::string& target, const std::vector<xla::XlaOp>& operands,
                     const xla::Shape& result, const std::string& attributes, bool has_side_effect,
                     absl::Span<const Alias> aliases) {
  const auto row_major = [](xla::Shape shape) {
    xla::LayoutUtil::SetToDefaultLayout(&shape);
    return shape;
  };
  return builder->ReportErrorOrReturn([&]() -> absl::StatusOr<xla::XlaOp> {
    std::vector<xla::Shape> shapes;
    for (const xla::XlaOp& operand : operands) {
      TF_ASSIGN_OR_RETURN(xla::Shape shape, builder->GetShape(operand));
      shapes.push_back(row_major(std::move(shape)));
    }
    return xla::CustomCallWithLayout(builder, target, operands, row_major(result), shapes, attributes, has_side_effect,
                                     aliases, /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
                                     xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  });
}

xla::XlaOp AtRunTime(tf::XlaOpKernelContext* context, xla::XlaOp value) {
  xla::XlaBuilder* const builder = context->builder();
  return builder->ReportErrorOrReturn([&]() -> absl::StatusOr<xla::XlaOp> {
    TF_ASSIGN_OR_RETURN(const xla::Shape shape, builder->GetShape(value));
    // For each shape, the computation that returns the first of two operands.
    using Selections = std::map<std::string, xla::XlaComputationId>;
    TF_ASSIGN_OR_RETURN(Selections* const selections, OfComputation<Selections>::Find(context));
    const auto [entry, is_new] = selections->try_emplace(xla::ShapeUtil::HumanString(shape));
    if (is_new) {
      xla::XlaBuilder selection("first");
      const xla::XlaOp first = xla::Parameter(&selection, 0, shape, "first");
      xla::Parameter(&selection, 1, shape, "second");
      TF_ASSIGN_OR_RETURN(const xla::XlaComputation built, selection.Build(first));
      entry->second = builder->AddSubComputation(built);
    }
    return xla::Call(builder, entry->second, {value, value});
  });
}

xla::XlaOp ResultOf(tf::XlaOpKernelContext* context, xla::XlaOp call, int64_t index) {
  return AtRunTime(context, xla::GetTupleElement(call, index));
}

std::vector<xla::XlaOp> ValuesOf(tf::XlaOpKernelContext* context) {
  const int end = OrderOf(*context).first;
  std::vector<xla::XlaOp> values;
  for (int i = 1; i < end; ++i) values.push_back(context->Input(i));
  return values;
}

absl::StatusOr<std::vector<xla::XlaOp>> CallWithState(tf::XlaOpKernelContext* context, const std::string& target,
                                                      const std::vector<xla::XlaOp>& operands,
                                                      const std::vector<xla::Shape>& results,
                                                      const std::string& attributes, bool in_place) {
  bool advance = true;
  tf::TryGetNodeAttr(context->op_kernel().def(), "advance", &advance);
  const auto [order, order_end] = OrderOf(*context);
  const int advanced = advance && order < order_end ? order : 0;
  std::vector<xla::XlaOp> arguments;
  for (int input = advanced;; input = 0) {
    tf::TensorShape shape;
    TF_RETURN_IF_ERROR(context->ReadVariableInput(input, tf::DT_INT64, &shape, &arguments.emplace_back()));
    if (input == 0) break;
  }
  const auto states = static_cast<int64_t>(arguments.size());
  arguments.insert(arguments.end(), operands.begin(), operands.end());
  std::vector<xla::Shape> result_shapes = {xla::ShapeUtil::MakeShape(xla::S64, {core::kProgramStateSize})};
  result_shapes.insert(result_shapes.end(), results.begin(), results.end());
  std::vector<Alias> aliases;
  for (int64_t i = 0; in_place && i < static_cast<int64_t>(operands.size()); ++i) {
    aliases.push_back({{i + 1}, {i + states, {}}});
  }
  if (advance) aliases.push_back({{0}, {0, {}}});  // So a loop need not copy the state.
  const xla::XlaOp call =
      TypedCall(context->builder(), target, arguments, xla::ShapeUtil::MakeTupleShape(result_shapes), attributes,
                /*has_side_effect=*/true, aliases);
  if (advance) TF_RETURN_IF_ERROR(context->AssignVariable(advanced, tf::DT_INT64, xla::GetTupleElement(call, 0)));
  std::vector<xla::XlaOp> elements;
  for (std::size_t i = 0; i < results.size(); ++i)
    elements.push_back(ResultOf(context, call, static_cast<int64_t>(i) + 1));
  return elements;
}

void SetOutputs(tf::XlaOpKernelContext* context, const std::vector<xla::XlaOp>& results) {
  for (std::size_t i = 0; i < results.size(); ++i) context->SetOutput(static_cast<int>(i), results[i]);
}

absl::Status SetOutputs(tf::XlaOpKernelContext* context, const absl::StatusOr<std::vector<xla::XlaOp>>& results) {
  if (results.ok()) SetOutputs(context, *results);
  return results.status();
}

absl::Status RefuseEmpty(const char* queue, const xla::Shape& shape) {
  if (!xla::ShapeUtil::IsZeroElementArray(shape)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("Detected an input tensor to an ", queue,
                                                 " queue with a dimension of size 0: its shape is ",
                                                 xla::ShapeUtil::HumanString(shape), ". Leave it out of the element."));
}

}  // namespace tensorflow_ipu
