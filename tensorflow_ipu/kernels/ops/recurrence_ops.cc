// The steps of LSTM and GRU layers, as kernels of the host. `numerics/recurrence.h` describes their tensors.
#include <algorithm>
#include <cstdint>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_ipu/kernels/host/threads.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "tensorflow_ipu/kernels/numerics/recurrence.h"
#include "tensorflow_ipu/kernels/ops/kernel.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

// An LSTM has one cell input, a GRU none.
#define IPU_RECURRENCE(name)        \
  REGISTER_OP(name)                 \
      .Attr("cells: int >= 0")      \
      .Attr("masks: int >= 0")      \
      .Input("inputs: float")       \
      .Input("kernel: float")       \
      .Input("state: float")        \
      .Input("cell: cells * float") \
      .Input("mask: masks * bool")

IPU_RECURRENCE("IpuRecurrence")
    .Output("states: float")
    .Output("saved: float")
    .Output("last_cell: cells * float")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      const auto rows = c->Dim(c->input(0), 0), steps = c->Dim(c->input(0), 1), units = c->Dim(c->input(2), 1);
      tf::shape_inference::DimensionHandle saved;
      TF_RETURN_IF_ERROR(c->Multiply(units, c->num_outputs() == 3 ? 5 : 4, &saved));
      c->set_output(0, c->MakeShape({rows, steps, units}));
      c->set_output(1, c->MakeShape({rows, steps, saved}));
      if (c->num_outputs() == 3) c->set_output(2, c->input(2));
      return absl::OkStatus();
    });

IPU_RECURRENCE("IpuRecurrenceGrad")
    .Input("states: float")
    .Input("saved: float")
    .Input("upstream: float")
    .Input("last_upstream: cells * float")
    .Output("of_inputs: float")
    .Output("of_kernel: float")
    .Output("of_state: float")
    .Output("of_cell: cells * float")
    .SetShapeFn(ShapesOfInputs<>);

// Returns the first tensor of an input, which may be a list. Returns null if the list is empty or there is no such
// input.
template <typename T>
T* InputOrNull(tf::OpKernelContext* context, const char* name) {
  tf::OpInputList list;
  if (!context->input_list(name, &list).ok() || list.size() == 0) return nullptr;
  return const_cast<T*>(list[0].flat<T>().data());
}

float* ResultAt(tf::OpKernelContext* context, int index, const tf::TensorShape& shape) {
  tf::Tensor* result = nullptr;
  const absl::Status status = context->allocate_output(index, shape, &result);
  if (status.ok()) return result->flat<float>().data();
  context->SetStatus(status);
  return nullptr;
}

absl::Status ComputeRecurrence(tf::OpKernelContext* context) {
  const tf::Tensor &inputs = context->input(0), &kernel = context->input(1), &state = context->input(2);
  const int64_t rows = inputs.dim_size(0);
  core::Recurrence r{};
  r.steps = inputs.dim_size(1);
  r.features = inputs.dim_size(2);
  r.units = state.dim_size(1);
  r.inputs = InputOrNull<float>(context, "inputs");
  r.kernel = InputOrNull<float>(context, "kernel");
  r.state = InputOrNull<float>(context, "state");
  r.cell = InputOrNull<float>(context, "cell");
  r.mask = InputOrNull<bool>(context, "mask");
  r.lstm = r.cell != nullptr;
  if (context->op_kernel().type_string_view() == "IpuRecurrence") {
    r.states = ResultAt(context, 0, {rows, r.steps, r.units});
    r.saved = ResultAt(context, 1, {rows, r.steps, r.saved_size()});
    if (r.lstm) r.last_cell = ResultAt(context, 2, state.shape());
  } else {
    r.states = InputOrNull<float>(context, "states");
    r.saved = InputOrNull<float>(context, "saved");
    r.upstream = InputOrNull<float>(context, "upstream");
    r.last_upstream = InputOrNull<float>(context, "last_upstream");
    r.of_inputs = ResultAt(context, 0, inputs.shape());
    r.of_kernel = ResultAt(context, 1, kernel.shape());
    r.of_state = ResultAt(context, 2, state.shape());
    if (r.lstm) r.of_cell = ResultAt(context, 3, state.shape());
  }
  TF_RETURN_IF_ERROR(context->status());
  tf::Tensor scratch;
  if (r.of_inputs != nullptr) {
    TF_RETURN_IF_ERROR(context->allocate_temp(tf::DT_FLOAT, {rows, r.steps, r.pitch() + r.depth()}, &scratch));
    r.of_gates = scratch.flat<float>().data();
    r.operands = r.of_gates + rows * r.steps * r.pitch();
  }
  const core::PackedKernel packed = core::Pack(r);
  const auto& threads = HostThreads::Of(context->device()->tensorflow_cpu_worker_threads()->num_threads);
  // Divides rows, which are independent, into parts of whole tiles: see `recurrence_steps.h`.
  const auto divide = [&](int64_t count, const auto& run) {
    const int64_t tiles = (count + 3) / 4, parts = std::min<int64_t>(threads.count(), tiles);
    threads.Divide(
        parts, [&](int64_t part) { run(part * tiles / parts * 4, std::min(count, (part + 1) * tiles / parts * 4)); });
  };
  divide(rows, [&](int64_t begin, int64_t end) { core::RunSteps(r, packed, begin, end); });
  if (r.of_inputs == nullptr) return absl::OkStatus();
  divide(r.depth(), [&](int64_t begin, int64_t end) { core::AddUpKernel(r, rows, begin, end); });
  return absl::OkStatus();
}

REGISTER_KERNEL_BUILDER(Name("IpuRecurrence").Device(tf::DEVICE_CPU), FunctionOp<ComputeRecurrence>);
REGISTER_KERNEL_BUILDER(Name("IpuRecurrenceGrad").Device(tf::DEVICE_CPU), FunctionOp<ComputeRecurrence>);

}  // namespace
}  // namespace tensorflow_ipu
