// Handler of a user's C++ function.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow_ipu/kernels/core/metrics.h"
#include "tensorflow_ipu/kernels/core/program_state.h"
#include "tensorflow_ipu/kernels/core/waiting.h"
#include "tensorflow_ipu/kernels/ffi/frame.h"
#include "tensorflow_ipu/kernels/ffi/reply.h"
#include "tensorflow_ipu/kernels/host/lines.h"
#include "tensorflow_ipu/kernels/host/user_functions.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

// Runs the function on this thread and on the program's memory.
ffi::Error CallUser(std::string_view attributes, std::string_view called, std::string_view name,
                    ffi::RemainingArgs arguments, ffi::ResultBuffer<ffi::S64> next_state, ffi::RemainingRets results) {
  const core::OrderedState states = core::OrderedStateAt(StatesOf(arguments));
  const std::shared_ptr<UserFunction> function = UserFunctions().Find(states.used.number);
  if (function == nullptr) {
    return ToError(core::Outcome::NotFound(absl::StrCat(
        name, LinesOf(called, name),
        ": it was deleted with the function that was traced. Keep the `tf.function` as long as its programs "
        "run.")));
  }
  if (core::interrupted) {
    return ToError(core::Outcome::Cancelled(absl::StrCat(name, LinesOf(called, name), ": the run was interrupted.")));
  }
  core::Count(&core::Metrics::Global().user_operation_calls);
  core::Advance(states.advanced, next_state->untyped_data());
  std::vector<const void*> data;
  std::vector<uint32_t> elements;
  std::vector<void*> outputs;
  for (auto i = static_cast<std::size_t>(states.states); i < arguments.size(); ++i) {
    const auto buffer = *arguments.get<ffi::AnyBuffer>(i);
    data.push_back(buffer.untyped_data());
    elements.push_back(static_cast<uint32_t>(buffer.element_count()));
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    outputs.push_back((*results.get<ffi::AnyBuffer>(i))->untyped_data());
  }
  try {
    (*function)(data, elements, outputs, std::string(attributes), std::string(called));
  } catch (const std::exception& thrown) {
    return ToError({core::Code::kUnknown, absl::StrCat(name, LinesOf(called, name), ": it threw: ", thrown.what())});
  } catch (...) {
    return ToError(
        {core::Code::kUnknown, absl::StrCat(name, LinesOf(called, name), ": it threw what is no `std::exception`.")});
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kCallUser, CallUser,
                       ffi::Ffi::Bind()
                           .Attr<std::string_view>("attributes")
                           .Attr<std::string_view>("called")
                           .Attr<std::string_view>("name")
                           .RemainingArgs()               // the order, if there is one, the state, and the inputs
                           .Ret<ffi::Buffer<ffi::S64>>()  // next_state
                           .RemainingRets());             // results
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_user_operation", "Host", kCallUser);

}  // namespace
}  // namespace tensorflow_ipu
