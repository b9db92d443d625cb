#include "tensorflow_ipu/kernels/lowering/executable_cache.h"

#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/compiler/jit/flags.h"
#include "tensorflow/core/lib/strings/proto_serialization.h"
#include "tensorflow/core/platform/fingerprint.h"
#include "tensorflow_ipu/kernels/core/metrics.h"
#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/device/program_compiler.h"
#include "tensorflow_ipu/kernels/lowering/compiler_client.h"
#include "tensorflow_ipu/kernels/lowering/program_kernels.h"
#include "tensorflow_ipu/kernels/precision/rewrite.h"
#include "xla/client/client_library.h"
#include "xla/service/cpu/executable.pb.h"
#include "xla/service/hlo.pb.h"
#include "xla/service/platform_util.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

// The name under which TensorFlow's launch of a program looks up the compiler of a device.
constexpr char kCompiler[] = "xla_device_compiler";

// Never destroyed: threads of programs may outlive static destructors.
struct Settings {
  core::Mutex mutex;
  Executables cache IPU_GUARDED_BY(mutex);
  std::vector<Executables> others IPU_GUARDED_BY(mutex);
};

Settings& TheSettings() {
  static auto* const settings = new Settings();
  return *settings;
}

// The program as text that is the same in each process: without the names that TensorFlow numbers, and without source
// locations.
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

std::string NameOfExecutable(const std::string& text, const std::string& key) {
  const tf::Fprint128 print = tf::Fingerprint128(absl::StrCat(key, "|", text));
  return absl::StrCat(absl::Hex(print.high64, absl::kZeroPad16), absl::Hex(print.low64, absl::kZeroPad16));
}

// Clears the features of the processor that the executable was compiled for. Two of them are tuning hints that no
// processor reports, so that XLA would warn twice whenever it loads an executable. The features that the processor must
// have are in the key.
std::string WithoutFeatures(std::string serialized) {
  xla::cpu::CompilationResultProto executable;
  if (!executable.ParseFromString(serialized)) return serialized;
  executable.mutable_target_machine_options()->clear_features();
  return executable.SerializeAsString();
}

// Compiles a program that emulates the machine's arithmetic. XLA's excess precision would skip the rounding to float16
// of values that are converted back to float32.
absl::StatusOr<std::unique_ptr<xla::LocalExecutable>> BuiltAsRounded(tf::XlaDeviceCompilerClient* client,
                                                                     const tf::XlaCompiler::Options& options,
                                                                     const tf::XlaCompiler::CompilationResult& result) {
  std::vector<const xla::Shape*> inputs;
  for (const xla::Shape& shape : result.xla_input_shapes) inputs.push_back(&shape);
  xla::ExecutableBuildOptions building =
      tf::GetExecutableBuildOptions(options, result, client->client()->default_device_ordinal());
  building.mutable_debug_options()->set_xla_allow_excess_precision(false);
  auto built = client->client()->Compile(*result.computation, inputs, building);
  if (!built.ok()) return built.status();
  return std::move(built->front());  // There is one partition.
}

// Has XLA compile the program, rewritten for the machine's arithmetic if it asks for that.
absl::StatusOr<std::unique_ptr<xla::LocalExecutable>> Built(tf::XlaDeviceCompilerClient* client,
                                                            const tf::XlaCompiler::Options& options,
                                                            const tf::XlaCompiler::CompilationResult& result) {
  auto rewritten = precision::Rewritten(*result.computation);
  if (!rewritten.ok()) return rewritten.status();
  if (*rewritten == nullptr) return client->tf::XlaDeviceCompilerClient::BuildExecutable(options, result);
  tf::XlaCompiler::CompilationResult changed = result;
  changed.computation = *std::move(rewritten);
  return BuiltAsRounded(client, options, changed);
}

void Install(tf::Device* device) {
  DeviceCompiler* const compiler = NewDeviceCompiler(device, {});
  tf::ResourceMgr* const resources = device->resource_manager();
  // If one exists, somebody asked TensorFlow for a compiled program before any ran. That compiler knows neither the
  // cache nor the machine's arithmetic.
  resources->Delete<DeviceCompiler>(resources->default_container(), kCompiler).IgnoreError();
  resources->Create(resources->default_container(), kCompiler, compiler).IgnoreError();
}

const bool installing = [] {
  install_compiler = Install;
  return true;
}();

}  // namespace

void SetExecutableCache(const std::string& folder, int64_t max_bytes, const std::string& key) {
  Executables cache;
  if (!folder.empty()) cache = {std::make_shared<core::FileCache>(folder, max_bytes), key};
  Settings& settings = TheSettings();
  const core::Lock lock(settings.mutex);
  settings.cache = std::move(cache);
}

void AddExecutables(const std::string& folder, const std::string& key) {
  Executables added = {std::make_shared<core::FileCache>(folder, std::numeric_limits<int64_t>::max()), key};
  Settings& settings = TheSettings();
  const core::Lock lock(settings.mutex);
  settings.others.push_back(std::move(added));
}

absl::StatusOr<std::unique_ptr<xla::LocalExecutable>> CompilerClient::BuildExecutable(
    const tf::XlaCompiler::Options& options, const tf::XlaCompiler::CompilationResult& result) {
  Executables cache = own_;
  std::vector<Executables> sources;
  if (cache.files == nullptr) {
    Settings& settings = TheSettings();
    const core::Lock lock(settings.mutex);
    cache = settings.cache;
    sources = settings.others;
  }
  if (cache.files != nullptr) sources.insert(sources.begin(), cache);
  if (sources.empty()) return Built(this, options, result);
  const std::string text = ProgramText(options, result);
  for (const Executables& source : sources) {
    const std::optional<std::string> found = source.files->Read(NameOfExecutable(text, source.key));
    if (!found) continue;
    absl::StatusOr<std::unique_ptr<xla::LocalExecutable>> loaded = LoadExecutable(options, result, *found);
    if (!loaded.ok()) continue;  // It is compiled again and overwritten.
    core::Count(&core::Metrics::Global().executables_loaded);
    return loaded;
  }
  absl::StatusOr<std::unique_ptr<xla::LocalExecutable>> built = Built(this, options, result);
  if (!built.ok() || cache.files == nullptr || text.empty()) return built;
  absl::StatusOr<std::string> serialized = SerializeExecutable(**built);
  if (serialized.ok() &&
      cache.files->Write(NameOfExecutable(text, cache.key), WithoutFeatures(*std::move(serialized)))) {
    core::Count(&core::Metrics::Global().executables_stored);
  }
  return built;
}

DeviceCompiler* NewDeviceCompiler(tf::DeviceBase* device, Executables own) {
  xla::LocalClientOptions options;
  options.set_platform(xla::PlatformUtil::GetPlatform("Host").value());
  options.set_intra_op_parallelism_threads(device->tensorflow_cpu_worker_threads()->num_threads);
  xla::LocalClient* const client = xla::ClientLibrary::GetOrCreateLocalClient(options).value();
  using Persistor = tf::DeviceExecutablePersistor<xla::LocalExecutable, xla::LocalClient>;
  // TensorFlow's own cache on disk, for users who set `TF_XLA_FLAGS`. We do not use it ourselves: a damaged file ends
  // the program, its folder grows without bound, and it logs errors when all is well.
  const tf::MarkForCompilationPassFlags& flags = *tf::GetMarkForCompilationPassFlags();
  const Persistor::Config config(flags.tf_xla_persistent_cache_directory, flags.tf_xla_disable_strict_signature_checks,
                                 flags.tf_xla_persistent_cache_prefix, flags.tf_xla_persistent_cache_read_only);
  RegisterProgramBackend();
  auto persistor = std::make_unique<Persistor>(
      config, tf::DeviceType(kProgramBackend));  // Also names the backend that it compiles by.
  return new DeviceCompiler(std::move(persistor), std::make_unique<CompilerClient>(client, std::move(own)));
}

}  // namespace tensorflow_ipu
