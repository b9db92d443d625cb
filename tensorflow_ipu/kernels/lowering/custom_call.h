// Lowers ops to custom calls.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/host/host_device.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

// The shape function of ops with an attribute `output_shapes` or `shapes`, which has a shape for each result.
absl::Status StatedShapes(tensorflow::shape_inference::InferenceContext* context);

// The shape function of ops whose results have the shapes of their inputs from `first` on.
template <int first = 0>
absl::Status ShapesOfInputs(tensorflow::shape_inference::InferenceContext* context) {
  for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i + first));
  return absl::OkStatus();
}

// The shape function of ops whose results are scalars.
absl::Status Scalars(tensorflow::shape_inference::InferenceContext* context);

// The kernel of an op that is lowered by a function.
template <absl::Status (*kLower)(tensorflow::XlaOpKernelContext*)>
class Lowering : public tensorflow::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tensorflow::XlaOpKernelContext* context) override { OP_REQUIRES_OK(context, kLower(context)); }
};

// Returns an attribute of the node being lowered.
template <typename T>
T AttributeOf(tensorflow::XlaOpKernelContext* context, const char* name) {
  return tensorflow::GetNodeAttr<T>(context->op_kernel().def(), name).value();
}

// Data that is kept while one computation is lowered, by one builder on one thread.
template <typename T>
class OfComputation : public tensorflow::ResourceBase {
 public:
  // Creates the data at the first use.
  static absl::StatusOr<T*> Find(tensorflow::XlaOpKernelContext* context) {
    tensorflow::OpKernelContext* const compilation = context->op_kernel_context();
    OfComputation* resource = nullptr;
    TF_RETURN_IF_ERROR(compilation->step_container()->LookupOrCreate<OfComputation>(
        compilation->resource_manager(), "ipu_lowering", &resource, MakeResource<OfComputation>));
    resource->Unref();  // The container holds it.
    return &resource->kept_;
  }
  std::string DebugString() const override { return "The data of a lowering"; }

 private:
  T kept_;
};

// The value of an attribute of a custom call.
struct CallValue {
  CallValue(bool value);
  CallValue(int64_t value);
  CallValue(float value);
  CallValue(const std::string& value);
  CallValue(const std::vector<int64_t>& value);
  std::string text;
};

// Returns the attributes of a custom call as an MLIR dictionary.
std::string CallAttributes(const std::vector<std::pair<const char*, CallValue>>& attributes);

// An element of the result, and the operand whose memory it uses.
using Alias = std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>;

// Calls a handler with operands and result in row-major layout, like tensors of the host.
xla::XlaOp TypedCall(xla::XlaBuilder* builder, const std::string& target, const std::vector<xla::XlaOp>& operands,
                     const xla::Shape& result, const std::string& attributes = "", bool has_side_effect = false,
                     absl::Span<const Alias> aliases = {});

// Returns `value`, hidden from XLA's search for values and bounds at compile time. That search follows the operands of
// shapes, slices and branches, and fails at a custom call. It does not enter calls of computations with several
// operands, which XLA inlines before its other passes.
xla::XlaOp AtRunTime(tensorflow::XlaOpKernelContext* context, xla::XlaOp value);

// Returns element `index` of the tuple that a custom call returns, hidden as by `AtRunTime`.
xla::XlaOp ResultOf(tensorflow::XlaOpKernelContext* context, xla::XlaOp call, int64_t index);

// An op with a state and with results must be registered with `IsMetadataOp()`. That ends TensorFlow's search for
// inputs that must be compile-time constants. If a result is used as an index, the search would otherwise reach the
// state and make its present value a part of the program. Then each replica and each run would be compiled again.

// The optional last input of an op with a state: the resource of the program's order. All ops with an order input read
// and assign it instead of their states.
#define ORDER_INPUT Input("order: orders * resource").Attr("orders: int >= 0 = 0")

// Returns the inputs of the op between its state (input 0) and its order.
std::vector<xla::XlaOp> ValuesOf(tensorflow::XlaOpKernelContext* context);

// Calls `target` with the state (input 0) and `operands`, assigns the returned state, and returns the other results,
// which have the shapes `results`. If the op has an order input (see ORDER_INPUT), the order precedes the state and is
// advanced instead. If its attribute `advance` is false, no state is assigned, since XLA does not allow that in the
// condition of a loop. With `in_place`, result i uses the memory of operand i, which has the same shape. XLA copies
// operands that have other uses.
absl::StatusOr<std::vector<xla::XlaOp>> CallWithState(tensorflow::XlaOpKernelContext* context,
                                                      const std::string& target,
                                                      const std::vector<xla::XlaOp>& operands,
                                                      const std::vector<xla::Shape>& results,
                                                      const std::string& attributes = "{}", bool in_place = false);

// Sets the first outputs of the op.
void SetOutputs(tensorflow::XlaOpKernelContext* context, const std::vector<xla::XlaOp>& results);
absl::Status SetOutputs(tensorflow::XlaOpKernelContext* context,
                        const absl::StatusOr<std::vector<xla::XlaOp>>& results);

// Rejects tensors without elements, which the machine's streams do not support.
absl::Status RefuseEmpty(const char* queue, const xla::Shape& shape);

}  // namespace tensorflow_ipu
