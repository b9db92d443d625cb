#include "tensorflow_ipu/kernels/precision/checks.h"

namespace tensorflow_ipu::precision {

Checks::Checks(const Options& options, const std::vector<Value>&) : options_(options) {}

void Checks::Note(const Emit&, const xla::HloInstruction&, Value) {}

Value Checks::Failed(const Emit&, const Scope& scope) { return scope.failed; }

}  // namespace tensorflow_ipu::precision
