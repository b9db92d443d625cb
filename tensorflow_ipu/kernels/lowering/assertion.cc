#include "tensorflow_ipu/kernels/lowering/assertion.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow_ipu/kernels/lowering/host_kernel.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/layout_util.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

absl::Status CallAssertion(tf::XlaOpKernelContext* context) {
  const tf::AttrSlice node(context->op_kernel().def());
  std::vector<std::string> texts;
  int64_t summarize = 3;
  tf::TryGetNodeAttr(node, kTextsAttribute, &texts);
  tf::TryGetNodeAttr(node, "summarize", &summarize);
  std::vector<xla::XlaOp> operands;
  std::vector<xla::Shape> shapes;
  std::string data;  // Parts of the message, each ended by a zero byte: `=` and a text, or `#` for the next operand.
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (context->input_type(i) == tf::DT_STRING) {
      const auto text = static_cast<std::size_t>(i - 1);
      absl::StrAppend(&data, "=", text < texts.size() ? texts[text] : "", std::string(1, '\0'));
      continue;
    }
    const absl::StatusOr<xla::Shape> shape = context->InputXlaShape(i);
    if (!shape.ok()) return shape.status();
    if (i > 0) absl::StrAppend(&data, "#", std::string(1, '\0'));
    operands.push_back(context->Input(i));
    shapes.push_back(*shape);
    xla::LayoutUtil::SetToDefaultLayout(&shapes.back());
  }
  xla::CustomCallWithLayout(
      context->builder(), "ipu_assert", operands, xla::ShapeUtil::MakeShape(xla::PRED, {}), shapes,
      absl::StrCat("{data = ", QuotedAttribute(data), ", name = ", QuotedAttribute(NameForMessages(context, data)),
                   ", summarize = ", summarize, " : i64}"),
      /*has_side_effect=*/true, {}, /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
      xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  return absl::OkStatus();
}

}  // namespace tensorflow_ipu
