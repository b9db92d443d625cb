#include "tensorflow_ipu/kernels/lowering/compile.h"

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tensorflow_ipu/kernels/lowering/device_compiler.h"  // First: others include what it replaces.

#include "tensorflow/compiler/jit/compilability_check_util.h"
#include "tensorflow/compiler/jit/device_compilation_profiler.h"
#include "tensorflow/compiler/jit/variable_info.h"
#include "tensorflow/compiler/jit/variable_info_util.h"
#include "tensorflow/compiler/jit/xla_compiler_options_util.h"
#include "tensorflow/compiler/jit/xla_launch_util.h"
#include "tensorflow/compiler/jit/xla_platform_info.h"
#include "tensorflow_ipu/kernels/core/file_cache.h"
#include "tensorflow_ipu/kernels/lowering/compiler_client.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// Follows TensorFlow's launch of a compiled function, up to where that runs the executable.
absl::Status Compile(tf::OpKernelContext* context, const tf::NameAttrList& function, const std::string& folder,
                     const std::string& key) {
  tf::FunctionLibraryRuntime* const library = context->function_library();
  const tf::FunctionBody* body = nullptr;
  std::vector<int> constants;
  std::vector<int> resources;
  absl::Status status = tf::GetBodyAndConstantsAndResources(library, function, &body, &constants, &resources);
  if (!status.ok()) return status;

  std::vector<const tf::Tensor*> inputs;
  for (int i = 0; i < context->num_inputs(); ++i) inputs.push_back(&context->input(i));
  auto* const device = static_cast<tf::Device*>(context->device());
  std::vector<tf::XlaCompiler::Argument> arguments;
  {
    std::vector<tf::VariableInfo> variables;
    status = tf::GetVariableInfosFromInputs(context->resource_manager(), device, inputs, resources, &variables);
    if (!status.ok()) return status;
    if (status = tf::LockVariables(absl::MakeSpan(variables)); !status.ok()) return status;
    auto built = tf::XlaComputationLaunchContext::BuildXlaCompilerArguments(constants, inputs, variables, device);
    if (!built.ok()) return built.status();
    arguments = *std::move(built);
  }

  Executables own;
  if (!folder.empty()) {
    own = {std::make_shared<core::FileCache>(folder, std::numeric_limits<int64_t>::max()), key};
  }
  const tf::core::RefCountPtr<DeviceCompiler> compiler(NewDeviceCompiler(device, std::move(own)));
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
