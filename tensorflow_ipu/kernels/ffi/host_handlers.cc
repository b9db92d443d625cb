// Handlers that call the host: assertions, embedding tables, host functions, host kernels and users' functions.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow_ipu/kernels/ffi/binding.h"
#include "tensorflow_ipu/kernels/host/embedding_table.h"
#include "tensorflow_ipu/kernels/host/function.h"
#include "tensorflow_ipu/kernels/host/kernel.h"
#include "tensorflow_ipu/kernels/host/lines.h"
#include "tensorflow_ipu/kernels/host/releases.h"
#include "tensorflow_ipu/kernels/host/sums.h"
#include "tensorflow_ipu/kernels/support/metrics.h"
#include "tensorflow_ipu/kernels/support/program_state.h"
#include "tensorflow_ipu/kernels/support/waiting.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;
namespace tf = tensorflow;

using Indices = ffi::Buffer<ffi::S32>;

tf::TensorShape ShapeOf(const ffi::AnyBuffer& buffer) {
  const auto dimensions = buffer.dimensions();
  return tf::TensorShape(absl::Span<const int64_t>(dimensions.begin(), dimensions.size()));
}

HostBuffer BufferOf(const ffi::AnyBuffer& buffer) {
  const auto dimensions = buffer.dimensions();
  return {buffer.untyped_data(), buffer.size_bytes(), {dimensions.begin(), dimensions.size()}};
}

std::string Summary(const ffi::AnyBuffer& buffer, int64_t entries) {
  // Both enumerations have the same values.
  const absl::StatusOr<tf::DataType> type =
      tf::EncodePrimitiveTypeAsDataType(static_cast<xla::PrimitiveType>(buffer.element_type()));
  if (!type.ok()) return "?";
  const absl::StatusOr<tf::Tensor> tensor = CopyOf(*type, BufferOf(buffer));
  return tensor.ok() ? tensor->SummarizeValue(entries) : "?";
}

ffi::Error Assert(ffi::Buffer<ffi::PRED> condition, ffi::RemainingArgs values, ffi::ResultBuffer<ffi::PRED> holds,
                  ffi::Dictionary attributes) {
  holds->typed_data()[0] = true;
  if (condition.typed_data()[0]) return ffi::Error::Success();
  std::string_view data = TextOf(attributes, "data");
  const std::string_view name = TextOf(attributes, "name");
  const int64_t summarize = *attributes.get<int64_t>("summarize");
  std::string message = absl::StrCat(name, LinesOf(data, name), ": assertion failed:");
  std::size_t value = 0;
  while (!data.empty()) {
    const std::string_view part = data.substr(0, data.find('\0'));
    data.remove_prefix(part.size() + 1);
    absl::StrAppend(
        &message, " [",
        part[0] == '=' ? std::string(part.substr(1)) : Summary(*values.get<ffi::AnyBuffer>(value++), summarize), "]");
  }
  return ffi::Error::InvalidArgument(message);
}

IPU_HANDLER("ipu_assert", Assert,
            ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::PRED>>().RemainingArgs().Ret<ffi::Buffer<ffi::PRED>>().Attrs());

ffi::Error Named(const absl::Status& status, std::string_view name) {
  return ToError(absl::Status(status.code(), absl::StrCat(name, ": ", status.message())));
}

// Returns an error of `node`, which messages call `name`. It contains the lines of source that created the node; see
// `LinesOf`.
ffi::Error Failed(const absl::Status& status, std::string_view node, std::string_view name) {
  return Named(status, absl::StrCat(name, LinesOf(node, name)));
}

// Returns the error of a call whose function was deleted.
absl::Status Deleted() {
  return absl::NotFoundError(
      "it was deleted with the traced function. Keep the `tf.function` as long as its programs run.");
}

// Returns null, and sets `status`, if the table was deleted or has other rows.
std::shared_ptr<EmbeddingTable> TableOf(const core::ProgramState& state, const ffi::AnyBuffer& rows,
                                        absl::Status* status) {
  std::shared_ptr<EmbeddingTable> table = EmbeddingTables().Find(state.number);
  if (table == nullptr) {
    *status = absl::NotFoundError("the embedding was deleted. Keep it as long as its programs run.");
  } else if (rows.dimensions().back() != table->width() || (rows.element_type() == ffi::F16) != table->half()) {
    *status = absl::InvalidArgumentError("the rows have another width or type than the embedding's.");
    table = nullptr;
  }
  return table;
}

ffi::Error LookUp(StateBuffer state, Indices indices, ffi::Result<StateBuffer> next_state,
                  ffi::Result<ffi::AnyBuffer> rows, ffi::Dictionary attributes) {
  const core::ProgramState at = core::StateAt(state.untyped_data());
  absl::Status status;
  if (const auto table = TableOf(at, *rows, &status)) {
    status = table->Lookup(indices.typed_data(), static_cast<int64_t>(indices.element_count()), rows->untyped_data());
  }
  core::Advance(state.untyped_data(), next_state->untyped_data());
  return Named(status, TextOf(attributes, "name"));
}

ffi::Error Update(StateBuffer state, Indices indices, ffi::AnyBuffer gradients, ffi::Result<StateBuffer> next_state,
                  ffi::Result<ffi::AnyBuffer> done, ffi::Dictionary attributes) {
  const core::ProgramState at = core::StateAt(state.untyped_data());
  absl::Status status;
  if (const auto table = TableOf(at, gradients, &status)) {
    status =
        table->Update(indices.typed_data(), static_cast<int64_t>(indices.element_count()), gradients.untyped_data(),
                      {*attributes.get<float>("learning_rate"), *attributes.get<int64_t>("batches"),
                       *attributes.get<int64_t>("site"), at.replica});
  }
  std::memset(done->untyped_data(), 0, done->size_bytes());
  core::Advance(state.untyped_data(), next_state->untyped_data());
  return Named(status, TextOf(attributes, "name"));
}

IPU_HANDLER("ipu_embedding_lookup", LookUp);
IPU_HANDLER("ipu_embedding_update", Update);

const core::Counter host_function_calls("HostFunctionCalls"), user_operation_calls("UserOperationCalls");

// Returns a future at once. The function may take long and wait for the user's code, and this thread is one of the few
// on which programs compute.
Answer CallHost(ffi::RemainingArgs arguments, ffi::Result<StateBuffer> next_state, ffi::RemainingRets results,
                ffi::Dictionary attributes) {
  const std::string_view node = TextOf(attributes, "node"), name = TextOf(attributes, "name");
  const core::OrderedState states = core::OrderedStateAt(StatesOf(arguments));
  const std::shared_ptr<HostFunction> function = HostFunctions().Find(states.used.number);
  if (function == nullptr) return Failed(Deleted(), node, name);
  host_function_calls.Add();
  core::Advance(states.advanced, next_state->untyped_data());
  absl::InlinedVector<HostBuffer, 4> passed;
  for (std::size_t i = states.states; i < arguments.size(); ++i) {
    passed.push_back(BufferOf(*arguments.get<ffi::AnyBuffer>(i)));
  }
  std::vector<HostResult> to;
  for (std::size_t i = 0; i < results.size(); ++i) {
    auto buffer = *results.get<ffi::AnyBuffer>(i);
    to.push_back({buffer->untyped_data(), buffer->size_bytes(), ShapeOf(*buffer)});
  }
  ffi::Promise promise;
  ffi::Future future(promise);
  function->Run(states.used.replica, states.used.replicas, passed, std::move(to),
                [promise, node = std::string(node), name = std::string(name)](const absl::Status& status) mutable {
                  if (status.ok()) return promise.SetAvailable();
                  promise.SetError(Failed(status, node, name));
                });
  return future;
}

// Arguments: the order, if there is one, the state, and the function's arguments.
IPU_HANDLER("ipu_host_call", CallHost, BindStateAndValues().Attrs());

// Host kernels. The arguments of a call are the kernel's inputs, followed by a slot for each input that is in a stash
// buffer.

// The kernel that XLA stores for a call in a program.
struct KernelOfCall {
  static ffi::TypeId id;
  std::shared_ptr<const HostKernel> kernel;
  core::Counter calls;  // Counts the calls of all kernels of this type.
};
ffi::TypeId KernelOfCall::id = {};

ffi::ErrorOr<std::unique_ptr<KernelOfCall>> Instantiate(ffi::Dictionary attributes) {
  const std::string_view node = TextOf(attributes, "node");
  absl::StatusOr<std::shared_ptr<const HostKernel>> kernel = HostKernel::Of(std::string(node));
  if (!kernel.ok()) return ffi::Unexpected(Failed(kernel.status(), node, TextOf(attributes, "name")));
  const core::Counter calls("HostKernelCalls:" + (*kernel)->type());
  return std::make_unique<KernelOfCall>(KernelOfCall{*std::move(kernel), calls});
}

// Returns a slot of a stash buffer as a buffer without the first dimension.
ffi::ErrorOr<HostBuffer> InStash(const HostBuffer& stash, int32_t slot) {
  const int64_t depth = stash.dimensions.front();
  if (slot < 0 || slot >= depth) return ffi::Unexpected(NoSuchSlot(slot));
  const std::size_t bytes = stash.bytes / static_cast<std::size_t>(depth);
  return HostBuffer{static_cast<char*>(stash.data) + static_cast<std::size_t>(slot) * bytes, bytes,
                    stash.dimensions.subspan(1)};
}

ffi::Error Run(KernelOfCall* call, ffi::ThreadPool threads, ffi::RemainingArgs arguments, ffi::RemainingRets results,
               ffi::Dictionary attributes) {
  const auto in_stashes = *attributes.get<ffi::Span<const int64_t>>("in_stashes");
  call->calls.Add();
  absl::InlinedVector<HostBuffer, 4> from, to;
  const std::size_t inputs = arguments.size() - in_stashes.size();
  for (std::size_t i = 0; i < inputs; ++i) from.push_back(BufferOf(*arguments.get<ffi::AnyBuffer>(i)));
  for (std::size_t i = 0; i < in_stashes.size(); ++i) {
    HostBuffer& input = from[static_cast<std::size_t>(in_stashes[i])];
    const ffi::ErrorOr<HostBuffer> in_slot =
        InStash(input, *arguments.get<ffi::Buffer<ffi::S32>>(inputs + i)->typed_data());
    if (in_slot.has_error()) return in_slot.error();
    input = *in_slot;
  }
  for (std::size_t i = 0; i < results.size(); ++i) to.push_back(BufferOf(**results.get<ffi::AnyBuffer>(i)));
  const absl::Status done = call->kernel->Run(from, to, HostThreads::Of(threads.num_threads()));
  return done.ok() ? ffi::Error::Success() : Failed(done, TextOf(attributes, "node"), TextOf(attributes, "name"));
}

IPU_REGISTER_STATE("ipu_kernel_of_call", KernelOfCall);

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(
    kRun, Run,
    ffi::Ffi::Bind().Ctx<ffi::State<KernelOfCall>>().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().Attrs());
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_host_kernel", "Host", {kInstantiate, nullptr, nullptr, kRun});

using Floats = ffi::Buffer<ffi::F32>;

ffi::Error Sum(ffi::ThreadPool threads, Floats left, Floats right, Floats center, ffi::Result<Floats> sums) {
  const auto dimensions = left.dimensions();
  SumProducts({left.typed_data(), right.typed_data(), center.typed_data(), dimensions[0], dimensions[1]},
              sums->typed_data(), HostThreads::Of(threads.num_threads()));
  return ffi::Error::Success();
}

IPU_HANDLER("ipu_sum_of_products", Sum,
            ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Floats>().Arg<Floats>().Arg<Floats>().Ret<Floats>());

// Runs the user's function on this thread, on the program's memory.
ffi::Error CallUser(ffi::RemainingArgs arguments, ffi::Result<StateBuffer> next_state, ffi::RemainingRets results,
                    ffi::Dictionary attributes) {
  const std::string_view called = TextOf(attributes, "called"), name = TextOf(attributes, "name");
  const core::OrderedState states = core::OrderedStateAt(StatesOf(arguments));
  const std::shared_ptr<UserFunction> function = UserFunctions().Find(states.used.number);
  if (function == nullptr) return Failed(Deleted(), called, name);
  if (core::interrupted) return Failed(absl::CancelledError("the run was interrupted."), called, name);
  user_operation_calls.Add();
  core::Advance(states.advanced, next_state->untyped_data());
  std::vector<const void*> data;
  std::vector<uint32_t> elements;
  std::vector<void*> outputs;
  for (std::size_t i = states.states; i < arguments.size(); ++i) {
    const auto buffer = *arguments.get<ffi::AnyBuffer>(i);
    data.push_back(buffer.untyped_data());
    elements.push_back(static_cast<uint32_t>(buffer.element_count()));
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    outputs.push_back((*results.get<ffi::AnyBuffer>(i))->untyped_data());
  }
  try {
    (*function)(data, elements, outputs, std::string(TextOf(attributes, "attributes")), std::string(called));
  } catch (const std::exception& thrown) {
    return Failed(absl::UnknownError(absl::StrCat("it threw: ", thrown.what())), called, name);
  } catch (...) {
    return Failed(absl::UnknownError("it threw an object that is not a `std::exception`."), called, name);
  }
  return ffi::Error::Success();
}

// Arguments: the order, if there is one, the state, and the inputs.
IPU_HANDLER("ipu_user_operation", CallUser, BindStateAndValues().Attrs());

}  // namespace
}  // namespace tensorflow_ipu
