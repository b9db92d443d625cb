#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "tensorflow_ipu/kernels/lowering/host_kernel.h"
#include "tensorflow_ipu/kernels/precision/options.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// Marks a program that emulates the machine's arithmetic. `options` are those of `precision::Options`. The state is
// that of the random streams.
REGISTER_OP("IpuHalfPrecision")
    .Input("state: resource")
    .Attr("options: string")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

namespace {

class HalfPrecisionXla : public tf::XlaOpKernel {
 public:
  explicit HalfPrecisionXla(tf::OpKernelConstruction* construction) : XlaOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("options", &options_));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    const xla::Shape word = xla::ShapeUtil::MakeShape(xla::U32, {});
    CallWithState(context, precision::kMarker, {}, {word, word, word, word},
                  absl::StrCat("{options = ", QuotedAttribute(options_), "}"));
  }

 private:
  std::string options_;
};

REGISTER_XLA_OP(Name("IpuHalfPrecision").IsMetadataOp(), HalfPrecisionXla);

}  // namespace
}  // namespace tensorflow_ipu
