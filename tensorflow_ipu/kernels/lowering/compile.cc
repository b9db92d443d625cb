// Compiles programs, with a cache of executables on disk.
#include "tensorflow_ipu/kernels/lowering/compile.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// TensorFlow's compiler of a device includes headers of PjRt. These include headers of MLIR, which TensorFlow's wheel
// lacks. The PjRt names that the compiler uses are declared here instead; none of them is called.
#ifndef XLA_PJRT_PJRT_CLIENT_H_
#define XLA_PJRT_PJRT_CLIENT_H_
namespace xla {
struct ExecuteOptions;
class PjRtBuffer;
class PjRtClient;
class PjRtDevice;
class PjRtLoadedExecutable {
 public:
  int64_t SizeOfGeneratedCodeInBytes() const;
};
}  // namespace xla
#endif  // XLA_PJRT_PJRT_CLIENT_H_

#ifndef TENSORFLOW_CORE_TFRT_COMMON_ASYNC_VALUE_TENSOR_H_
#define TENSORFLOW_CORE_TFRT_COMMON_ASYNC_VALUE_TENSOR_H_
namespace tensorflow {
class AsyncValueAllocator;
}  // namespace tensorflow
#endif  // TENSORFLOW_CORE_TFRT_COMMON_ASYNC_VALUE_TENSOR_H_

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/compiler/jit/compilability_check_util.h"
#include "tensorflow/compiler/jit/device_compilation_profiler.h"
#include "tensorflow/compiler/jit/device_compiler.h"
#include "tensorflow/compiler/jit/flags.h"
#include "tensorflow/compiler/jit/variable_info.h"
#include "tensorflow/compiler/jit/variable_info_util.h"
#include "tensorflow/compiler/jit/xla_activity_listener.h"
#include "tensorflow/compiler/jit/xla_compiler_options_util.h"
#include "tensorflow/compiler/jit/xla_device_compiler_client.h"
#include "tensorflow/compiler/jit/xla_launch_util.h"
#include "tensorflow/compiler/jit/xla_platform_info.h"
#include "tensorflow/core/lib/strings/proto_serialization.h"
#include "tensorflow/core/platform/fingerprint.h"
#include "tensorflow_ipu/kernels/device/ipu_device.h"
#include "tensorflow_ipu/kernels/host/releases.h"
#include "tensorflow_ipu/kernels/lowering/program_kernels.h"
#include "tensorflow_ipu/kernels/precision/late_program.h"
#include "tensorflow_ipu/kernels/precision/rewrite.h"
#include "tensorflow_ipu/kernels/support/file_cache.h"
#include "tensorflow_ipu/kernels/support/metrics.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"
#include "xla/service/cpu/executable.pb.h"
#include "xla/service/hlo.pb.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;
using DeviceCompiler = tf::DeviceCompiler<xla::LocalExecutable, xla::LocalClient>;

namespace {

const core::Counter loaded_executables("ExecutablesLoaded"), stored_executables("ExecutablesStored");

// Returns the times of all compilations.
core::Samples& Times() { return core::NeverDestroyed<core::Samples>(); }

class Listener : public tf::XlaActivityListener {
 public:
  absl::Status Listen(const tf::XlaAutoClusteringActivity&) override { return absl::OkStatus(); }

  absl::Status Listen(const tf::XlaJitCompilationActivity& done) override {
    Times().Add(core::Samples::Clock::now(), std::chrono::microseconds(done.compile_time_us()));
    return absl::OkStatus();
  }

  absl::Status Listen(const tf::XlaOptimizationRemark&) override { return absl::OkStatus(); }
};

const bool listening = [] {
  tf::RegisterXlaActivityListener(std::make_unique<Listener>());
  return true;
}();

// The places that the process searches for executables before it compiles a program. A key describes all that
// executables depend on, except for their programs.
struct Sources {
  std::shared_ptr<const core::FileCache> files;
  std::string files_key;
  // An executable in memory, with a checksum, and the number of its users.
  struct Held {
    std::shared_ptr<const std::string> packed;
    int64_t users;
  };
  std::map<std::string, Held> held;
  std::string held_key;
};

struct Settings {
  absl::Mutex mutex;
  Sources sources ABSL_GUARDED_BY(mutex);
};

Settings& TheSettings() { return core::NeverDestroyed<Settings>(); }

// TensorFlow's client, which looks for executables before it compiles. Thread-safe, except with `kept`.
class CompilerClient : public tf::XlaDeviceCompilerClient {
 public:
  // If `kept` is set, executables are stored in `*kept` and not in the folder. `*kept` must outlive the client.
  CompilerClient(xla::LocalClient* client, const std::string& key, KeptExecutable* kept)
      : XlaDeviceCompilerClient(client), key_(key), kept_(kept) {}

  absl::StatusOr<std::unique_ptr<xla::LocalExecutable>> BuildExecutable(
      const tf::XlaCompiler::Options& options, const tf::XlaCompiler::CompilationResult& result) override;

 private:
  const std::string key_;
  KeptExecutable* const kept_;
};

// TensorFlow's launch of a program looks up the compiler of a device by this name.
constexpr char kCompiler[] = "xla_device_compiler";

// Returns the program as a text that is the same in each process. It lacks the names that TensorFlow generates from
// counters, and source locations.
std::string ProgramText(const tf::XlaCompiler::Options& options, const tf::XlaCompiler::CompilationResult& result) {
  xla::HloModuleProto module = result.computation->proto();
  module.clear_name();
  module.clear_id();
  module.clear_entry_computation_name();
  module.clear_stack_frame_index();
  for (xla::HloComputationProto& computation : *module.mutable_computations()) {
    computation.clear_name();
    for (xla::HloInstructionProto& instruction : *computation.mutable_instructions()) {
      instruction.clear_name();
      instruction.clear_metadata();
    }
  }
  std::string text;
  if (!tf::SerializeToStringDeterministic(module, &text)) return "";
  for (const xla::Shape& shape : result.xla_input_shapes) absl::StrAppend(&text, "|", shape.ToString(true));
  absl::StrAppend(&text, "|", result.xla_output_shape.ToString(true), "|", options.alias_passthrough_params);
  return text;
}

// All that an executable depends on, and a name derived from it.
struct Identity {
  Identity(const std::string& key, const std::string& text) : all(absl::StrCat(key, "|", text)) {
    const tf::Fprint128 print = tf::Fingerprint128(all);
    name = absl::StrCat(absl::Hex(print.high64, absl::kZeroPad16), absl::Hex(print.low64, absl::kZeroPad16));
  }

  std::string all;
  std::string name;
};

// Clears the features of the processor that the executable was compiled for. Two of them are tuning hints that no
// processor reports, so XLA would warn twice whenever it loads an executable. The key contains the features that the
// processor must have.
std::string WithoutFeatures(std::string serialized) {
  xla::cpu::CompilationResultProto executable;
  if (!executable.ParseFromString(serialized)) return serialized;
  ClearProcessorFeatures(executable);
  return executable.SerializeAsString();
}

// Compiles the program with XLA. The program is rewritten first if it emulates the machine's arithmetic.
absl::StatusOr<std::unique_ptr<xla::LocalExecutable>> Built(tf::XlaDeviceCompilerClient* client,
                                                            const tf::XlaCompiler::Options& options,
                                                            const tf::XlaCompiler::CompilationResult& result) {
  TF_ASSIGN_OR_RETURN(const auto rewritten, precision::Rewritten(*result.computation));
  if (rewritten == nullptr) return client->tf::XlaDeviceCompilerClient::BuildExecutable(options, result);
  std::vector<const xla::Shape*> inputs;
  for (const xla::Shape& shape : result.xla_input_shapes) inputs.push_back(&shape);
  xla::ExecutableBuildOptions building =
      tf::GetExecutableBuildOptions(options, result, client->client()->default_device_ordinal());
  xla::DebugOptions& debugging = *building.mutable_debug_options();
  // XLA would otherwise skip the rounding to float16 of values that are converted back to float32.
  debugging.set_xla_allow_excess_precision(false);
  // LLVM vectorizes loops that convert float16, but not loops that it has unrolled.
  (*debugging.mutable_xla_backend_extra_options())["xla_cpu_disable_loop_unrolling"] = "true";
  TF_ASSIGN_OR_RETURN(auto built, client->client()->Compile(*rewritten, inputs, building));
  return std::move(built.front());  // There is one partition.
}

absl::StatusOr<std::unique_ptr<xla::LocalExecutable>> CompilerClient::BuildExecutable(
    const tf::XlaCompiler::Options& options, const tf::XlaCompiler::CompilationResult& result) {
  Sources sources;
  {
    Settings& settings = TheSettings();
    const absl::MutexLock lock(&settings.mutex);
    sources = settings.sources;
  }
  if (kept_ != nullptr) sources.files = nullptr;
  if (kept_ == nullptr && sources.files == nullptr && sources.held.empty()) return Built(this, options, result);
  const std::string text = ProgramText(options, result);
  if (text.empty()) return Built(this, options, result);

  // An executable that XLA cannot load is compiled again and replaced.
  const auto load = [&](const std::optional<std::string>& serialized) {
    std::unique_ptr<xla::LocalExecutable> loaded;
    if (!serialized) return loaded;
    absl::StatusOr<std::unique_ptr<xla::LocalExecutable>> executable = LoadExecutable(options, result, *serialized);
    if (!executable.ok()) return loaded;
    loaded_executables.Add();
    return *std::move(executable);
  };
  std::optional<Identity> of_file;
  if (sources.files != nullptr) {
    of_file.emplace(sources.files_key, text);
    if (auto loaded = load(sources.files->Read(of_file->name, of_file->all))) return loaded;
  }
  if (!sources.held.empty()) {
    const Identity identity(sources.held_key, text);
    const auto held = sources.held.find(identity.name);
    if (held != sources.held.end()) {
      const std::string& packed = *held->second.packed;
      if (auto loaded = load(core::Unpacked(identity.all, packed))) {
        if (kept_ != nullptr) *kept_ = {identity.name, packed};
        return loaded;
      }
    }
  }
  absl::StatusOr<std::unique_ptr<xla::LocalExecutable>> built = Built(this, options, result);
  if (!built.ok() || (kept_ == nullptr && sources.files == nullptr)) return built;
  absl::StatusOr<std::string> serialized = SerializeExecutable(**built);
  if (!serialized.ok()) return built;
  const std::string contents = WithoutFeatures(*std::move(serialized));
  if (kept_ != nullptr) {
    const Identity identity(key_, text);
    *kept_ = {identity.name, core::Packed(identity.all, contents)};
  } else if (sources.files->Write(of_file->name, of_file->all, contents)) {
    stored_executables.Add();
  }
  return built;
}

// Creates a compiler like the one that TensorFlow creates for each device. The caller owns it.
DeviceCompiler* NewDeviceCompiler(tf::DeviceBase* device, const std::string& key = "", KeptExecutable* kept = nullptr) {
  xla::LocalClient* const client = precision::HostClient(device->tensorflow_cpu_worker_threads()->num_threads);
  using Persistor = tf::DeviceExecutablePersistor<xla::LocalExecutable, xla::LocalClient>;
  // TensorFlow's cache on disk, for users who set `TF_XLA_FLAGS`. This package does not use it: a damaged file ends the
  // program, its folder grows without bound, and it logs errors when all is well.
  const tf::MarkForCompilationPassFlags& flags = *tf::GetMarkForCompilationPassFlags();
  const Persistor::Config config(flags.tf_xla_persistent_cache_directory, flags.tf_xla_disable_strict_signature_checks,
                                 flags.tf_xla_persistent_cache_prefix, flags.tf_xla_persistent_cache_read_only);
  RegisterProgramBackend();
  auto persistor =
      std::make_unique<Persistor>(config, tf::DeviceType(kProgramBackend));  // The same name selects the backend.
  return new DeviceCompiler(std::move(persistor), std::make_unique<CompilerClient>(client, key, kept));
}

void Install(tf::Device* device) {
  DeviceCompiler* const compiler = NewDeviceCompiler(device);
  tf::ResourceMgr* const resources = device->resource_manager();
  // If TensorFlow has compiled a program before the first run, it has created its own compiler. That compiler supports
  // neither the cache nor the machine's arithmetic, so it is replaced.
  resources->Delete<DeviceCompiler>(resources->default_container(), kCompiler).IgnoreError();
  resources->Create(resources->default_container(), kCompiler, compiler).IgnoreError();
}

const bool installing = [] {
  install_compiler = Install;
  return true;
}();

}  // namespace

const core::Samples& CompileTimes() { return Times(); }

// Follows TensorFlow's launch of a compiled function, except that it does not run the executable.
absl::Status Compile(tf::OpKernelContext* context, const tf::NameAttrList& function, const std::string& key,
                     KeptExecutable* kept) {
  tf::FunctionLibraryRuntime* const library = context->function_library();
  const tf::FunctionBody* body = nullptr;
  std::vector<int> constants;
  std::vector<int> resources;
  TF_RETURN_IF_ERROR(tf::GetBodyAndConstantsAndResources(library, function, &body, &constants, &resources));
  std::vector<const tf::Tensor*> inputs;
  for (int i = 0; i < context->num_inputs(); ++i) inputs.push_back(&context->input(i));
  auto* const device = static_cast<tf::Device*>(context->device());
  std::vector<tf::XlaCompiler::Argument> arguments;
  {
    std::vector<tf::VariableInfo> variables;
    TF_RETURN_IF_ERROR(
        tf::GetVariableInfosFromInputs(context->resource_manager(), device, inputs, resources, &variables));
    TF_RETURN_IF_ERROR(tf::LockVariables(absl::MakeSpan(variables)));
    TF_ASSIGN_OR_RETURN(
        arguments, tf::XlaComputationLaunchContext::BuildXlaCompilerArguments(constants, inputs, variables, device));
  }

  const tf::core::RefCountPtr<DeviceCompiler> compiler(NewDeviceCompiler(device, key, kept));
  const tf::core::RefCountPtr<tf::DeviceCompilationProfiler> profiler(new tf::DeviceCompilationProfiler());
  const tf::XlaPlatformInfo platform = tf::XlaPlatformInfoFromDevice(device);
  const tf::XlaCompiler::Options options =
      tf::GenerateCompilerOptions(*compiler, *library, device, /*stream=*/nullptr, platform, /*has_ref_vars=*/false);
  const tf::XlaCompiler::CompileOptions compile_options =
      tf::GenerateCompileOptions(/*has_ref_vars=*/false, /*may_alias_resource_update=*/true);
  const tf::XlaCompiler::CompilationResult* result = nullptr;
  xla::LocalExecutable* executable = nullptr;
  return compiler->CompileIfNeeded(options, function, arguments, compile_options, tf::DeviceCompileMode::kStrict,
                                   profiler.get(), &result, &executable);
}

}  // namespace tensorflow_ipu

extern "C" {

// Sets the folder that stores programs compiled from now on; an empty name disables it. The key describes all that an
// executable depends on besides the program, such as versions and the processor. With `trusting`, files of other users
// are loaded too. Previous folders are not changed.
void ipu_set_executable_cache(const char* folder, int64_t max_bytes, const char* key, int32_t trusting) {
  using namespace tensorflow_ipu;
  std::shared_ptr<const core::FileCache> files;
  if (*folder != '\0') files = std::make_shared<core::FileCache>(folder, max_bytes, trusting != 0);
  Settings& settings = TheSettings();
  const absl::MutexLock lock(&settings.mutex);
  settings.sources.files = std::move(files);
  settings.sources.files_key = key;
}

// Makes programs load from this executable, which `IpuCompile` returned. Each call needs one `ipu_release_executable`.
// The key is the same in each call of a process.
void ipu_hold_executable(const char* key, const char* name, const char* packed, int64_t size) {
  using namespace tensorflow_ipu;
  auto copy = std::make_shared<const std::string>(packed, static_cast<std::size_t>(size));
  Settings& settings = TheSettings();
  const absl::MutexLock lock(&settings.mutex);
  settings.sources.held_key = key;
  Sources::Held& held = settings.sources.held[name];
  held.packed = std::move(copy);
  ++held.users;
}

void ipu_release_executable(const char* name) {
  using namespace tensorflow_ipu;
  Settings& settings = TheSettings();
  const absl::MutexLock lock(&settings.mutex);
  const auto held = settings.sources.held.find(name);
  if (held != settings.sources.held.end() && --held->second.users == 0) settings.sources.held.erase(held);
}

}  // extern "C"
