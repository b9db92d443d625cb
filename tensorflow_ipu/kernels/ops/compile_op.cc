#include <string>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_ipu/kernels/lowering/compile.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// Compiles `f` for `args` without running it. The executable is stored in `folder` under a name by `key` and the
// program, or where the process is configured to if there is no folder.
REGISTER_OP("IpuCompile")
    .Input("args: Tin")
    .Attr("Tin: list(type) >= 0")
    .Attr("f: func")
    .Attr("folder: string = ''")
    .Attr("key: string = ''")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

namespace {

class CompileOp : public tf::OpKernel {
 public:
  explicit CompileOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("f", &function_));
    OP_REQUIRES_OK(construction, construction->GetAttr("folder", &folder_));
    OP_REQUIRES_OK(construction, construction->GetAttr("key", &key_));
  }

  void Compute(tf::OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Compile(context, function_, folder_, key_));
  }

 private:
  tf::NameAttrList function_;
  std::string folder_;
  std::string key_;
};

REGISTER_KERNEL_BUILDER(Name("IpuCompile").Device(tf::DEVICE_CPU), CompileOp);

}  // namespace
}  // namespace tensorflow_ipu
