// The steps of LSTM and GRU layers, as kernels of the host: `core/recurrence.h` says which tensors they have.
#include <algorithm>
#include <cstdint>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/util/work_sharder.h"
#include "tensorflow_ipu/kernels/core/recurrence.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

using tf::shape_inference::DimensionHandle;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

// An LSTM has a cell, and a GRU a bias of its recurrent products.
#define RECURRENT_ATTRIBUTES Attr("cells: int >= 0").Attr("biases: int >= 0").Attr("masks: int >= 0")

// The common inputs: those of the products, the kernel and the state.
absl::Status CheckSizes(InferenceContext* context, int* cells, DimensionHandle* wide, DimensionHandle* saved) {
  ShapeHandle inputs, kernel;
  DimensionHandle same;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &inputs));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 2, &kernel));
  TF_RETURN_IF_ERROR(context->GetAttr("cells", cells));
  const DimensionHandle units = context->Dim(kernel, 0);
  const int64_t gates = 3 + *cells;
  TF_RETURN_IF_ERROR(context->Multiply(units, gates, wide));
  TF_RETURN_IF_ERROR(context->Multiply(units, gates + 1, saved));
  TF_RETURN_IF_ERROR(context->Merge(context->Dim(inputs, 2), *wide, &same));
  TF_RETURN_IF_ERROR(context->Merge(context->Dim(kernel, 1), *wide, &same));
  const ShapeHandle state = context->Matrix(context->Dim(inputs, 0), units);
  ShapeHandle merged;
  for (int i = 2; i < 3 + *cells; ++i) TF_RETURN_IF_ERROR(context->Merge(context->input(i), state, &merged));
  return absl::OkStatus();
}

absl::Status ForwardShapes(InferenceContext* context) {
  int cells = 0;
  DimensionHandle wide, saved;
  TF_RETURN_IF_ERROR(CheckSizes(context, &cells, &wide, &saved));
  const DimensionHandle rows = context->Dim(context->input(0), 0), steps = context->Dim(context->input(0), 1);
  context->set_output(0, context->MakeShape({rows, steps, context->Dim(context->input(1), 0)}));
  context->set_output(1, context->MakeShape({rows, steps, saved}));
  if (cells == 1) context->set_output(2, context->input(3));
  return absl::OkStatus();
}

absl::Status BackwardShapes(InferenceContext* context) {
  int cells = 0;
  DimensionHandle wide, saved;
  TF_RETURN_IF_ERROR(CheckSizes(context, &cells, &wide, &saved));
  context->set_output(0, context->input(0));
  for (int i = 1; i < 2 + cells; ++i) context->set_output(i, context->input(2));
  if (cells == 0) context->set_output(2, context->input(0));
  return absl::OkStatus();
}

REGISTER_OP("IpuRecurrence")
    .Input("inputs: float")
    .Input("kernel: float")
    .Input("state: float")
    .Input("cell: cells * float")
    .Input("bias: biases * float")
    .Input("mask: masks * bool")
    .Output("states: float")
    .Output("saved: float")
    .Output("last_cell: cells * float")
    .RECURRENT_ATTRIBUTES.SetShapeFn(ForwardShapes);

REGISTER_OP("IpuRecurrenceGrad")
    .Input("inputs: float")
    .Input("kernel: float")
    .Input("state: float")
    .Input("cell: cells * float")
    .Input("bias: biases * float")
    .Input("mask: masks * bool")
    .Input("states: float")
    .Input("saved: float")
    .Input("upstream: float")
    .Input("last_upstream: cells * float")
    .Output("of_inputs: float")
    .Output("of_state: float")
    .Output("of_cell: cells * float")
    .Output("of_products: biases * float")
    .RECURRENT_ATTRIBUTES.SetShapeFn(BackwardShapes);

class RecurrenceOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

 protected:
  // Input `at` and those behind it, if the list `name` has one.
  static const tf::Tensor* Listed(tf::OpKernelContext* context, const char* name) {
    tf::OpInputList list;
    return context->input_list(name, &list).ok() && list.size() > 0 ? &list[0] : nullptr;
  }

  static const float* Floats(tf::OpKernelContext* context, const char* name) {
    const tf::Tensor* const tensor = Listed(context, name);
    return tensor == nullptr ? nullptr : tensor->flat<float>().data();
  }

  static core::Recurrence Described(tf::OpKernelContext* context) {
    const tf::Tensor* const mask = Listed(context, "mask");
    const float* const cell = Floats(context, "cell");
    return {context->input(0).dim_size(1), context->input(1).dim_size(0), cell != nullptr, Floats(context, "kernel"),
            Floats(context, "state"),      cell, mask == nullptr ? nullptr : mask->flat<bool>().data()};
  }

  static float* Result(tf::OpKernelContext* context, int at, const tf::TensorShape& shape) {
    tf::Tensor* result = nullptr;
    const absl::Status status = context->allocate_output(at, shape, &result);
    if (status.ok()) return result->flat<float>().data();
    context->SetStatus(status);
    return nullptr;
  }

  // Divides the rows among the threads, in equal parts.
  template <typename Function>
  static void ForRows(tf::OpKernelContext* context, Function function) {
    constexpr int64_t kMuch = 1 << 20;  // The cost of a part, which is a task of its own.
    if (!context->status().ok()) return;
    const auto* const threads = context->device()->tensorflow_cpu_worker_threads();
    const int64_t rows = context->input(0).dim_size(0), parts = threads->num_threads, size = (rows + parts - 1) / parts;
    tf::Shard(threads->num_threads, threads->workers, parts, kMuch, [&](int64_t first, int64_t last) {
      function(std::min(rows, first * size), std::min(rows, last * size));
    });
  }
};

class ForwardOp : public RecurrenceOp {
 public:
  using RecurrenceOp::RecurrenceOp;

  void Compute(tf::OpKernelContext* context) override {
    core::ForwardRecurrence r{};
    static_cast<core::Recurrence&>(r) = Described(context);
    const tf::Tensor &inputs = context->input(0), &state = context->input(2);
    r.inputs = inputs.flat<float>().data();
    r.bias = Floats(context, "bias");
    r.states = Result(context, 0, {inputs.dim_size(0), r.steps, r.units});
    r.saved = Result(context, 1, {inputs.dim_size(0), r.steps, r.saved_size()});
    if (r.lstm) r.last_cell = Result(context, 2, state.shape());
    const core::Lines kernel = core::ForwardKernel(r);
    ForRows(context, [&](int64_t begin, int64_t end) { core::RunForward(r, kernel, begin, end); });
  }
};

class BackwardOp : public RecurrenceOp {
 public:
  using RecurrenceOp::RecurrenceOp;

  void Compute(tf::OpKernelContext* context) override {
    core::BackwardRecurrence r{};
    static_cast<core::Recurrence&>(r) = Described(context);
    const tf::TensorShape &inputs = context->input(0).shape(), &state = context->input(2).shape();
    r.states = Floats(context, "states");
    r.saved = Floats(context, "saved");
    r.upstream = Floats(context, "upstream");
    r.last_upstream = Floats(context, "last_upstream");
    r.inputs = Result(context, 0, inputs);
    r.of_state = Result(context, 1, state);
    if (r.lstm) r.of_cell = Result(context, 2, state);
    r.products = r.lstm ? r.inputs : Result(context, 2, inputs);
    const core::Lines kernel = core::BackwardKernel(r);
    ForRows(context, [&](int64_t begin, int64_t end) { core::RunBackward(r, kernel, begin, end); });
  }
};

REGISTER_KERNEL_BUILDER(Name("IpuRecurrence").Device(tf::DEVICE_CPU), ForwardOp);
REGISTER_KERNEL_BUILDER(Name("IpuRecurrenceGrad").Device(tf::DEVICE_CPU), BackwardOp);

}  // namespace
}  // namespace tensorflow_ipu
