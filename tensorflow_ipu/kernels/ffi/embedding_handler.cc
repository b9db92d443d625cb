// Handlers that read and update the rows of a table on the host.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "tensorflow_ipu/kernels/core/program_state.h"
#include "tensorflow_ipu/kernels/ffi/reply.h"
#include "tensorflow_ipu/kernels/host/embedding_table.h"
#include "tensorflow_ipu/kernels/host/lines.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

ffi::Error Named(core::Outcome outcome, std::string_view name) {
  if (!outcome.ok()) outcome.message = absl::StrCat(name, ": ", outcome.message);
  return ToError(std::move(outcome));
}

// Null where the table does not or no longer hold such rows; `outcome` says why.
std::shared_ptr<EmbeddingTable> TableOf(const core::ProgramState& state, const ffi::AnyBuffer& rows,
                                        core::Outcome* outcome) {
  std::shared_ptr<EmbeddingTable> table = EmbeddingTables().Find(state.number);
  if (table == nullptr) {
    *outcome = core::Outcome::NotFound("the embedding was deleted. Keep it as long as its programs run.");
  } else if (rows.dimensions().back() != table->width() || (rows.element_type() == ffi::F16) != table->half()) {
    *outcome = core::Outcome::InvalidArgument("the rows are of another width or type than the embedding's.");
    table = nullptr;
  }
  return table;
}

ffi::Error LookUp(ffi::Buffer<ffi::S64> state, ffi::Buffer<ffi::S32> indices, ffi::ResultBuffer<ffi::S64> next_state,
                  ffi::Result<ffi::AnyBuffer> rows, std::string_view name) {
  const core::ProgramState at = core::StateAt(state.untyped_data());
  core::Outcome outcome;
  if (const auto table = TableOf(at, *rows, &outcome)) {
    outcome = table->Look(indices.typed_data(), static_cast<int64_t>(indices.element_count()), rows->untyped_data());
  }
  core::Advance(state.untyped_data(), next_state->untyped_data());
  return Named(std::move(outcome), name);
}

ffi::Error Update(ffi::Buffer<ffi::S64> state, ffi::Buffer<ffi::S32> indices, ffi::AnyBuffer gradients,
                  ffi::ResultBuffer<ffi::S64> next_state, ffi::Result<ffi::AnyBuffer> done, float learning_rate,
                  int64_t batches, int64_t site, std::string_view name) {
  const core::ProgramState at = core::StateAt(state.untyped_data());
  core::Outcome outcome;
  if (const auto table = TableOf(at, gradients, &outcome)) {
    outcome = table->Update(indices.typed_data(), static_cast<int64_t>(indices.element_count()),
                            gradients.untyped_data(), {learning_rate, batches, site, at.lane});
  }
  std::memset(done->untyped_data(), 0, done->size_bytes());
  core::Advance(state.untyped_data(), next_state->untyped_data());
  return Named(std::move(outcome), name);
}

XLA_FFI_DEFINE_HANDLER(kLookUp, LookUp,
                       ffi::Ffi::Bind()
                           .Arg<ffi::Buffer<ffi::S64>>()  // state
                           .Arg<ffi::Buffer<ffi::S32>>()  // indices
                           .Ret<ffi::Buffer<ffi::S64>>()  // next_state
                           .Ret<ffi::AnyBuffer>()         // rows
                           .Attr<std::string_view>("name"));
XLA_FFI_DEFINE_HANDLER(kUpdate, Update,
                       ffi::Ffi::Bind()
                           .Arg<ffi::Buffer<ffi::S64>>()  // state
                           .Arg<ffi::Buffer<ffi::S32>>()  // indices
                           .Arg<ffi::AnyBuffer>()         // gradients
                           .Ret<ffi::Buffer<ffi::S64>>()  // next_state
                           .Ret<ffi::AnyBuffer>()         // done
                           .Attr<float>("learning_rate")
                           .Attr<int64_t>("batches")
                           .Attr<int64_t>("site")
                           .Attr<std::string_view>("name"));
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_embedding_lookup", "Host", kLookUp);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_embedding_update", "Host", kUpdate);

}  // namespace
}  // namespace tensorflow_ipu
