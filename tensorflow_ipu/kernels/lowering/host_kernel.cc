#include "tensorflow_ipu/kernels/lowering/host_kernel.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/compiler/tf2xla/xla_context.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/protobuf.h"
#include "tensorflow/core/platform/stack_frame.h"
#include "tensorflow/core/public/version.h"
#include "tensorflow_ipu/kernels/host/kernel.h"
#include "tensorflow_ipu/kernels/host/lines.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

std::string TextOf(const tf::NodeDef& node) {
  tf::NodeDef bare;
  bare.set_op(node.op());
  bare.set_name(node.op());
  for (int i = 0; i < node.input_size(); ++i) bare.add_input(absl::StrCat("input_", i));
  for (const auto& attribute : node.attr()) {
    if (!absl::StartsWith(attribute.first, "_")) bare.mutable_attr()->insert(attribute);
  }
  tf::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  printer.PrintToString(bare, &text);
  return text;
}

namespace {

bool IsOfLibrary(const std::string& file) {
  if (file == "<string>") return true;  // Generated code, such as the wrappers of this package's ops.
  for (const char* const library : {"-packages/tensorflow/", "-packages/keras/", "-packages/tensorflow_ipu/"}) {
    if (absl::StrContains(file, library)) return true;
  }
  return false;
}

// Returns the user's line that created the node being lowered; empty if it is not known.
std::string LineOf(tf::XlaOpKernelContext* context) {
  const tf::AbstractStackTrace* const trace =
      context->xla_context()->StackTraceForNodeName(context->op_kernel().name());
  if (trace == nullptr) return "";
  const std::vector<tf::StackFrame> frames = trace->ToUncachedFrames();
  for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
    if (!IsOfLibrary(frame->file_name)) return absl::StrCat(frame->file_name, ":", frame->line_number);
  }
  return "";
}

using StashSlots = std::vector<std::pair<xla::XlaOp, StashSlot>>;

}  // namespace

std::string NameForMessages(tf::XlaOpKernelContext* context, const std::string& key) {
  const std::string name = absl::StrCat(context->op_kernel().type_string(), " `", context->op_kernel().name(), "`");
  if (const std::string line = LineOf(context); !line.empty()) NoteLine(key, name, line);
  return name;
}

bool HasHostKernel(const tf::NodeDef& node) { return HostKernel::Of(TextOf(node)).ok(); }

std::optional<std::vector<tf::TensorShape>> ResultShapes(tf::XlaOpKernelContext* context, int count) {
  const tf::NodeDef& node = context->op_kernel().def();
  const tf::OpRegistrationData* op = nullptr;
  if (!tf::OpRegistry::Global()->LookUp(node.op(), &op).ok() || op->shape_inference_fn == nullptr) return std::nullopt;
  std::vector<tf::PartialTensorShape> shapes;
  std::vector<tf::Tensor> constants(context->num_inputs());
  std::vector<const tf::Tensor*> values(context->num_inputs(), nullptr);
  for (int i = 0; i < context->num_inputs(); ++i) {
    const absl::StatusOr<xla::Shape> shape = context->InputXlaShape(i);
    if (!shape.ok() || shape->is_dynamic()) return std::nullopt;
    shapes.emplace_back(tf::TensorShape(shape->dimensions()));
  }
  std::vector<int> constant_inputs;  // Inputs that must be known at compile time, such as shapes.
  if (!tf::XlaOpRegistry::CompileTimeConstantInputs(context->op_kernel(), &constant_inputs).ok()) return std::nullopt;
  for (const int i : constant_inputs) {
    absl::StatusOr<tf::Tensor> constant = context->ConstantInputTensor(i);
    if (!constant.ok()) return std::nullopt;
    constants[i] = *std::move(constant);
    values[i] = &constants[i];
  }
  tf::shape_inference::InferenceContext inference(TF_GRAPH_DEF_VERSION, tf::AttrSlice(node), op->op_def, shapes, values,
                                                  {}, {});
  if (!inference.construction_status().ok() || !inference.Run(op->shape_inference_fn).ok()) return std::nullopt;
  std::vector<tf::TensorShape> results;
  for (int i = 0; i < std::min(count, inference.num_outputs()); ++i) {
    const tf::shape_inference::ShapeHandle output = inference.output(i);
    if (!inference.FullyDefined(output)) return std::nullopt;
    results.emplace_back();
    for (int axis = 0; axis < inference.Rank(output); ++axis) {
      results.back().AddDim(inference.Value(inference.Dim(output, axis)));
    }
  }
  return results;
}

absl::StatusOr<std::vector<xla::XlaOp>> CallHostKernel(tf::XlaOpKernelContext* context, const tf::NodeDef& called,
                                                       const std::vector<tf::TensorShape>& results, bool always) {
  const std::string node = TextOf(called);
  const std::string name = NameForMessages(context, node);
  const tf::OpDef* op = nullptr;
  tf::DataTypeVector operand_types, result_types;  // Of the call.
  TF_RETURN_IF_ERROR(tf::OpRegistry::Global()->LookUpOpDef(called.op(), &op));
  TF_RETURN_IF_ERROR(tf::InOutTypesForNode(called, *op, &operand_types, &result_types));
  const auto converted = [](xla::XlaOp value, tf::DataType from, tf::DataType to) {
    xla::PrimitiveType element = xla::PRIMITIVE_TYPE_INVALID;
    const bool converts = from != to && tf::DataTypeToPrimitiveType(to, &element).ok();
    return converts ? xla::ConvertElementType(value, element) : value;
  };
  std::vector<xla::XlaOp> operands, slots;
  std::vector<int64_t> in_stashes;
  for (int i = 0; i < context->num_inputs(); ++i) {
    const tf::DataType from = context->input_type(i), to = operand_types[i];
    const std::optional<StashSlot> slot = from == to ? StashSlotOf(context, context->Input(i)) : std::nullopt;
    operands.push_back(slot ? slot->stash : converted(context->Input(i), from, to));
    if (!slot) continue;
    in_stashes.push_back(i);
    slots.push_back(slot->slot);
  }
  operands.insert(operands.end(), slots.begin(), slots.end());
  std::vector<xla::Shape> result_shapes;
  const int count = static_cast<int>(results.size());
  for (int i = 0; i < count; ++i) {
    TF_RETURN_IF_ERROR(tf::TensorShapeToXLAShape(result_types[i], results[i], &result_shapes.emplace_back()));
  }
  const bool is_single = result_shapes.size() == 1;
  const xla::XlaOp call = TypedCall(context->builder(), "ipu_host_kernel", operands,
                                    is_single ? result_shapes[0] : xla::ShapeUtil::MakeTupleShape(result_shapes),
                                    CallAttributes({{"node", node}, {"name", name}, {"in_stashes", in_stashes}}),
                                    /*has_side_effect=*/always);
  std::vector<xla::XlaOp> outputs;
  for (int i = 0; i < count; ++i) {
    outputs.push_back(converted(is_single ? AtRunTime(context, call) : ResultOf(context, call, i), result_types[i],
                                context->expected_output_dtype(i)));
  }
  return outputs;
}

xla::XlaOp CallAssertion(tf::XlaOpKernelContext* context, xla::XlaOp holds, const std::vector<PartOfMessage>& message,
                         int64_t summarize) {
  std::vector<xla::XlaOp> operands = {holds};
  std::string data;  // Each part ends with a zero byte: `=` and a text, or `#` for the next operand.
  for (const PartOfMessage& part : message) {
    if (const auto* const text = std::get_if<std::string>(&part)) {
      absl::StrAppend(&data, "=", *text);
    } else {
      data += "#";
      operands.push_back(std::get<xla::XlaOp>(part));
    }
    data += '\0';
  }
  return TypedCall(context->builder(), "ipu_assert", operands, xla::ShapeUtil::MakeShape(xla::PRED, {}),
                   CallAttributes({{"data", data}, {"name", NameForMessages(context, data)}, {"summarize", summarize}}),
                   /*has_side_effect=*/true);
}

absl::Status NoteStashSlot(tf::XlaOpKernelContext* context, xla::XlaOp value, const StashSlot& slot) {
  TF_ASSIGN_OR_RETURN(StashSlots* const slots, OfComputation<StashSlots>::Find(context));
  slots->emplace_back(value, slot);
  return absl::OkStatus();
}

std::optional<StashSlot> StashSlotOf(tf::XlaOpKernelContext* context, xla::XlaOp value) {
  const absl::StatusOr<StashSlots*> slots = OfComputation<StashSlots>::Find(context);
  if (!slots.ok()) return std::nullopt;
  for (const auto& [read, slot] : **slots) {
    if (read.IsIdenticalTo(value)) return slot;
  }
  return std::nullopt;
}

}  // namespace tensorflow_ipu
