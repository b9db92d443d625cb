// `IpuOutlined` calls a function that is in the program once, however often it is called.
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/compiler/tf2xla/kernels/if_while_utils.h"
#include "tensorflow/compiler/tf2xla/xla_compiler.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/compiler/tf2xla/xla_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow_ipu/kernels/lowering/called_function.h"
#include "tensorflow_ipu/kernels/lowering/stated_shapes.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// TensorFlow inlines calls of its functions before it compiles a graph, but not this op.
REGISTER_OP("IpuOutlined")
    .Input("inputs: input_types")
    .Output("outputs: output_types")
    .Attr("input_types: list(type) >= 0")
    .Attr("output_types: list(type) >= 0")
    .Attr("output_shapes: list(shape) >= 0")
    .Attr("f: func")
    .SetIsStateful()
    .SetShapeFn(StatedShapes);

namespace {

// The computations that were added to a builder, which would add one again at each call. It is a resource of the
// compilation of one graph, and so of one builder and one thread.
class AddedComputations : public tf::ResourceBase {
 public:
  std::string DebugString() const override { return "the outlined functions of a computation"; }

  xla::XlaComputationId IdOf(xla::XlaBuilder* builder, const std::shared_ptr<xla::XlaComputation>& computation) {
    const auto found = added_.find(computation.get());
    if (found != added_.end()) return found->second.second;
    const xla::XlaComputationId id = builder->AddSubComputation(*computation);
    added_.emplace(computation.get(), std::make_pair(computation, id));
    return id;
  }

 private:
  // Keeps each computation, so that no other one gets its address.
  std::map<const xla::XlaComputation*, std::pair<std::shared_ptr<xla::XlaComputation>, xla::XlaComputationId>> added_;
};

class OutlinedXla : public tf::XlaOpKernel {
 public:
  explicit OutlinedXla(tf::OpKernelConstruction* construction) : XlaOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("f", &function_));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<tf::XlaCompiler::Argument> arguments(context->num_inputs());
    for (int i = 0; i < context->num_inputs(); ++i) {
      OP_REQUIRES_OK(context, DescribeInput(context, i, &arguments[i]));
    }
    // Such as shapes: a call with others becomes a computation of its own.
    tf::ConvertCompileTimeConstArgumentsToConst(context, &arguments, /*xla_expression_offset=*/0, [&](int i) {
      return context->InputExpression(i).kind() == tf::XlaExpression::Kind::kConstant;
    });
    tf::XlaCompiler::CompileOptions options;
    options.is_entry_computation = false;
    // Cached by the compiler for functions that it has compiled for such arguments before.
    tf::XlaCompiler::CompilationResult compiled;
    OP_REQUIRES_OK(context, context->compiler()->CompileFunction(options, function_, arguments, &compiled));
    std::vector<xla::XlaOp> operands;
    for (const int i : compiled.input_mapping) {
      operands.emplace_back();
      OP_REQUIRES_OK(context, OperandOf(context, i, &operands.back()));
    }
    tf::OpKernelContext* const compilation = context->op_kernel_context();
    AddedComputations* added = nullptr;
    OP_REQUIRES_OK(context, compilation->step_container()->LookupOrCreate<AddedComputations>(
                                compilation->resource_manager(), "ipu_outlined", &added, [](AddedComputations** made) {
                                  *made = new AddedComputations();
                                  return absl::OkStatus();
                                }));
    const tf::core::ScopedUnref owned(added);
    const xla::XlaComputationId id = added->IdOf(context->builder(), compiled.computation);
    const xla::XlaOp results = xla::Call(context->builder(), id, operands);
    int place = 0;
    for (std::size_t i = 0; i < compiled.outputs.size(); ++i) {
      const tf::XlaOutputDescription& output = compiled.outputs[i];
      if (output.is_constant) {
        context->SetConstantOutput(static_cast<int>(i), output.constant_value);
      } else if (output.is_tensor_list) {
        context->SetTensorListOutput(static_cast<int>(i), xla::GetTupleElement(results, place++));
      } else {
        context->SetOutput(static_cast<int>(i), xla::GetTupleElement(results, place++));
      }
    }
    for (const tf::XlaResourceUpdate& update : compiled.resource_updates) {
      tf::XlaResource* resource = nullptr;
      OP_REQUIRES_OK(context, context->GetResourceInput(update.input_index, &resource));
      const xla::XlaOp value = xla::GetTupleElement(results, place++);
      if (update.modified) {
        OP_REQUIRES_OK(context,
                       resource->SetFromPack(update.tensor_array_gradients_accessed, value, context->builder()));
      }
    }
  }

 private:
  tf::NameAttrList function_;
};

REGISTER_XLA_OP(Name("IpuOutlined").AllowResourceTypes().AllowVariantTypes(), OutlinedXla);

}  // namespace
}  // namespace tensorflow_ipu
