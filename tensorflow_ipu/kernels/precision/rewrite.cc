#include "tensorflow_ipu/kernels/precision/rewrite.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tensorflow_ipu/kernels/precision/options.h"
#include "tensorflow_ipu/kernels/precision/partials.h"
#include "tensorflow_ipu/kernels/precision/walk.h"
#include "xla/debug_options_flags.h"
#include "xla/hlo/ir/hlo_instructions.h"
#include "xla/hlo/ir/hlo_module.h"

namespace tensorflow_ipu::precision {

namespace {

using xla::HloOpcode;

bool HasMarker(const xla::HloModuleProto& program) {
  for (const xla::HloComputationProto& computation : program.computations()) {
    if (computation.id() != program.entry_computation_id()) continue;
    for (const xla::HloInstructionProto& instruction : computation.instructions()) {
      if (instruction.custom_call_target() == kMarker) return true;
    }
  }
  return false;
}

Value MarkerOf(const xla::HloModule& module) {
  for (const Value instruction : module.entry_computation()->instructions()) {
    if (instruction->IsCustomCall(kMarker)) return instruction;
  }
  return nullptr;
}

// The text between the quotes of the marker's only attribute.
std::string OptionsText(const Value marker) {
  const std::string text = marker->raw_backend_config_string();
  const std::size_t begin = text.find('"');
  const std::size_t end = text.rfind('"');
  return begin == end ? "" : text.substr(begin + 1, end - begin - 1);
}

// Sets the attributes of operations where TensorFlow has not passed them on.
void Attribute(const Options& options, xla::HloModule* module) {
  if (options.said.empty()) return;
  for (xla::HloComputation* const computation : module->computations()) {
    for (const Value instruction : computation->instructions()) {
      std::string_view name = instruction->metadata().op_name();
      // After inlining, the last of several names is the one with the calls.
      if (const std::size_t at = name.rfind(';'); at != std::string_view::npos) name.remove_prefix(at + 1);
      for (const auto& [attribute, values] : options.said) {
        const auto found = values.find(name);
        if (found != values.end()) instruction->add_frontend_attribute(attribute, found->second);
      }
    }
  }
}

bool IsControlFlow(const xla::HloInstruction& instruction) {
  return instruction.opcode() == HloOpcode::kWhile || instruction.opcode() == HloOpcode::kConditional ||
         instruction.opcode() == HloOpcode::kCall;
}

// Gives each loop, branch and call its own copy of its computations, since each has its own keys for rounding.
void Unshare(xla::HloModule* module) {
  std::vector<xla::HloComputation*> waiting = {module->entry_computation()};
  std::vector<const xla::HloComputation*> taken;
  while (!waiting.empty()) {
    xla::HloComputation* const computation = waiting.back();
    waiting.pop_back();
    for (const Value instruction : computation->instructions()) {
      if (!IsControlFlow(*instruction)) continue;
      instruction->ReplaceCalledComputations([&](xla::HloComputation* called) {
        if (std::find(taken.begin(), taken.end(), called) != taken.end()) {
          called = module->AddEmbeddedComputation(called->Clone("again"));
        }
        taken.push_back(called);
        waiting.push_back(called);
        return called;
      });
    }
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<xla::XlaComputation>> Rewritten(const xla::XlaComputation& program) {
  if (!HasMarker(program.proto())) return nullptr;
  auto config = xla::HloModule::CreateModuleConfigFromProto(program.proto(), xla::GetDebugOptionsFromFlags());
  if (!config.ok()) return config.status();
  auto module = xla::HloModule::CreateFromProto(program.proto(), *config);
  if (!module.ok()) return module.status();
  const Value marker = MarkerOf(**module);
  const Options options = Options::Of(OptionsText(marker));
  Attribute(options, module->get());
  Unshare(module->get());
  if (const auto partials = RewritePartials(options, module->get()); !partials.ok()) return partials.status();
  absl::Status status = Walk(options).Program(module->get(), marker);
  if (!status.ok()) return status;
  return std::make_shared<xla::XlaComputation>((*module)->ToProto());
}

}  // namespace tensorflow_ipu::precision
