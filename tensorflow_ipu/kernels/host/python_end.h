// The end of Python, which native threads may outlive.
#pragma once

#include <functional>
#include <memory>

#include "tensorflow/core/framework/function.h"

namespace tensorflow_ipu {

// From now on threads leave Python alone. Waits for calls of BeforePythonEnds, so the caller must not hold Python's
// lock.
void EndPython();

bool PythonHasEnded();

// Calls `call` and keeps Python alive meanwhile. Returns false, without a call, if Python has ended. Thread-safe.
bool BeforePythonEnds(const std::function<void()>& call);

// Functions hold Python's stack traces, and take Python's lock to free them.
struct DropBeforePythonEnds {
  void operator()(const tensorflow::FunctionLibraryDefinition* functions) const {
    BeforePythonEnds([functions] { delete functions; });  // Else they leak.
  }
};

// Has to be destroyed after everything that uses these functions.
using TracedFunctions = std::unique_ptr<tensorflow::FunctionLibraryDefinition, DropBeforePythonEnds>;

}  // namespace tensorflow_ipu
