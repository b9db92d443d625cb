#include <cstdint>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// Passes on `count`, a number of micro-batches or of iterations over them that is only known at run time. The run fails
// with the message `before`, `count`, `behind` unless it is a multiple of `multiple` from `least` to `largest`.
REGISTER_OP("IpuMicroBatches")
    .Input("count: int64")
    .Output("checked: int64")
    .Attr("multiple: int >= 1")
    .Attr("least: int >= 0")
    .Attr("largest: int >= 1")
    .Attr("before: string")
    .Attr("behind: string")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

namespace {

class MicroBatchesXla : public tf::XlaOpKernel {
 public:
  explicit MicroBatchesXla(tf::OpKernelConstruction* construction) : XlaOpKernel(construction) {
    int64_t multiple = 1;
    int64_t least = 0;
    int64_t largest = 1;
    std::string before;
    std::string behind;
    OP_REQUIRES_OK(construction, construction->GetAttr("multiple", &multiple));
    OP_REQUIRES_OK(construction, construction->GetAttr("least", &least));
    OP_REQUIRES_OK(construction, construction->GetAttr("largest", &largest));
    OP_REQUIRES_OK(construction, construction->GetAttr("before", &before));
    OP_REQUIRES_OK(construction, construction->GetAttr("behind", &behind));
    attributes_ =
        absl::StrCat("{multiple = ", multiple, " : i64, least = ", least, " : i64, largest = ", largest,
                     " : i64, before = \"", absl::CEscape(before), "\", behind = \"", absl::CEscape(behind), "\"}");
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    context->SetOutput(
        0, xla::CustomCallWithLayout(context->builder(), "ipu_micro_batches", {context->Input(0)},
                                     xla::ShapeUtil::MakeShape(xla::S64, {}), {xla::ShapeUtil::MakeShape(xla::S64, {})},
                                     attributes_, /*has_side_effect=*/true, /*output_operand_aliasing=*/{},
                                     /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
                                     xla::CustomCallApiVersion::API_VERSION_TYPED_FFI));
  }

 private:
  std::string attributes_;
};

REGISTER_XLA_OP(Name("IpuMicroBatches").IsMetadataOp(), MicroBatchesXla);

}  // namespace
}  // namespace tensorflow_ipu
