#include "tensorflow_ipu/kernels/host/call.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/public/version.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

absl::StatusOr<std::unique_ptr<tf::OpKernel>> CreateKernel(const tf::NodeDef& node) {
  static auto* const device = new KernelDevice();
  absl::Status status;
  std::unique_ptr<tf::OpKernel> kernel =
      tf::CreateOpKernel(tf::DEVICE_CPU, device, tf::cpu_allocator(), node, TF_GRAPH_DEF_VERSION, &status);
  if (!status.ok()) return status;
  return kernel;
}

absl::StatusOr<Tensors> Call(tf::OpKernel* kernel, absl::Span<const tf::Tensor> inputs, KernelDevice* device,
                             std::size_t lent) {
  absl::InlinedVector<tf::TensorValue, 4> values;
  values.reserve(inputs.size());
  // A kernel reuses an input that owns its memory alone, which a program's does not.
  for (const tf::Tensor& input : inputs) values.emplace_back(const_cast<tf::Tensor*>(&input));
  const absl::InlinedVector<tf::AllocatorAttributes, 4> input_attributes(inputs.size());
  absl::InlinedVector<tf::AllocatorAttributes, 4> output_attributes(kernel->num_outputs());
  for (std::size_t i = 0; i < std::min(lent, output_attributes.size()); ++i) {
    output_attributes[i] = KernelDevice::OfResult(i);
  }
  tf::OpKernelContext::Params params;
  params.device = device;
  params.op_kernel = kernel;
  params.inputs = values;
  params.input_alloc_attrs = input_attributes;
  params.output_attr_array = output_attributes.data();
  tf::OpKernelContext context(&params, kernel->num_outputs());
  kernel->Compute(&context);
  if (!context.status().ok()) return context.status();
  Tensors results;
  for (int i = 0; i < kernel->num_outputs(); ++i) {
    const tf::Tensor* const result = context.mutable_output(i);
    if (result == nullptr) return absl::InternalError(absl::StrCat("It gave no output ", i, "."));
    results.push_back(*result);
  }
  return results;
}

}  // namespace tensorflow_ipu
