#include "tensorflow_ipu/kernels/replicas/program_states.h"

#include <cstring>
#include <optional>

#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow_ipu/kernels/replicas/copies.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

tf::Tensor TensorOf(const core::ProgramState& state) {
  tf::Tensor tensor(tf::DT_INT64, tf::TensorShape({core::kProgramStateSize}));
  std::memcpy(tensor.data(), &state, sizeof(state));
  return tensor;
}

void RestoreStates(tf::OpKernelContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (!context->has_input(i) || context->input_dtype(i) != tf::DT_RESOURCE) continue;
    const tf::ResourceHandle& handle = tf::HandleFromInput(context, i);
    const std::optional<core::ProgramState> first = core::ProgramState::OfVariable(handle.name());
    tf::core::RefCountPtr<tf::Var> variable;
    if (!first.has_value() || !tf::LookupResource(context, handle, &variable).ok()) continue;
    Copies::Global().NoteWrite(variable.get());
    if (!variable->mu()->try_lock()) continue;
    *variable->tensor() = TensorOf(*first);
    variable->mu()->unlock();
  }
}

}  // namespace tensorflow_ipu
