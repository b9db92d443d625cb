#include "tensorflow_ipu/kernels/precision/late_program.h"

#include <cstddef>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/host/threads.h"
#include "tsl/platform/snappy.h"
#include "xla/client/client_library.h"
#include "xla/executable_run_options.h"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/service/hlo.pb.h"
#include "xla/service/platform_util.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu::precision {

xla::LocalClient* HostClient(int threads) {
  xla::LocalClientOptions options;
  options.set_platform(xla::PlatformUtil::GetPlatform("Host").value());
  options.set_intra_op_parallelism_threads(threads);
  return xla::ClientLibrary::GetOrCreateLocalClient(options).value();
}

absl::Status LateProgram::Compile() {
  std::string packed, bytes;
  xla::HloModuleProto module;
  std::size_t size = 0;
  const bool read = absl::WebSafeBase64Unescape(serialized_, &packed) &&
                    tsl::port::Snappy_GetUncompressedLength(packed.data(), packed.size(), &size);
  bytes.resize(size);
  if (!read || !tsl::port::Snappy_Uncompress(packed.data(), packed.size(), bytes.data()) ||
      !module.ParseFromString(bytes)) {
    return absl::InternalError("A program that is compiled late cannot be read.");
  }
  const xla::XlaComputation program(std::move(module));
  TF_ASSIGN_OR_RETURN(const xla::ProgramShape shape, program.GetProgramShape());
  parameters_.assign(shape.parameters().begin(), shape.parameters().end());
  std::vector<const xla::Shape*> layouts;
  for (const xla::Shape& parameter : parameters_) layouts.push_back(&parameter);
  xla::ExecutableBuildOptions options;
  // Rounds like the program that it recomputes.
  options.mutable_debug_options()->set_xla_allow_excess_precision(false);
  TF_ASSIGN_OR_RETURN(auto compiled, HostClient()->Compile(program, layouts, options));
  executable_ = std::move(compiled.front());  // There is one partition.
  serialized_.clear();
  return absl::OkStatus();
}

absl::StatusOr<LateProgram::Results> LateProgram::Run(absl::Span<void* const> arguments) {
  {
    const absl::MutexLock lock(&mutex_);
    if (!serialized_.empty()) TF_RETURN_IF_ERROR(Compile());
  }
  std::vector<xla::ShapedBuffer> buffers;
  buffers.reserve(arguments.size());
  std::vector<const xla::ShapedBuffer*> passed;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const xla::Shape& shape = parameters_[i];
    xla::ShapedBuffer& buffer = buffers.emplace_back(shape, /*device_ordinal=*/0);
    using Address = std::decay_t<decltype(buffer.root_buffer())>;  // Releases of XLA have different names for the type.
    buffer.set_buffer(Address(arguments[i], static_cast<uint64_t>(xla::ShapeUtil::ByteSizeOf(shape))), {});
    passed.push_back(&buffer);
  }
  xla::ExecutableRunOptions options;
  options.set_allocator(HostClient()->backend().memory_allocator());
  // All of XLA's threads may run programs that wait for this one.
  options.set_intra_op_thread_pool(HostThreads::Of(0).device());
  TF_ASSIGN_OR_RETURN(xla::ScopedShapedBuffer memory, executable_->Run(absl::MakeConstSpan(passed), options));
  std::vector<HostArray> arrays;
  const auto& shapes = memory.on_device_shape().tuple_shapes();
  for (int64_t i = 0; i < static_cast<int64_t>(shapes.size()); ++i) {
    const xla::Shape& shape = shapes[static_cast<std::size_t>(i)];
    arrays.push_back(
        {memory.buffer({i}).opaque(), xla::ShapeUtil::ElementsIn(shape), shape.element_type() == xla::F16});
  }
  return Results{std::move(memory), std::move(arrays)};
}

}  // namespace tensorflow_ipu::precision
