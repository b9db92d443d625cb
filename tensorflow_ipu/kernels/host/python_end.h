// The end of Python, which native threads may outlive.
#pragma once

#include <functional>
#include <memory>

#include "tensorflow/core/framework/function.h"

namespace tensorflow_ipu {

// Stops all later uses of Python by native threads. Waits for running calls of BeforePythonEnds, so the caller must not
// hold Python's lock.
void EndPython();

bool PythonHasEnded();

// Calls `call` and keeps Python alive until it returns. If Python has ended, returns false without a call. Thread-safe.
bool BeforePythonEnds(const std::function<void()>& call);

// A deleter of function libraries. Functions hold stack traces of Python, so deleting them acquires Python's lock.
struct DropBeforePythonEnds {
  void operator()(const tensorflow::FunctionLibraryDefinition* functions) const {
    BeforePythonEnds([functions] { delete functions; });  // After Python's end they leak.
  }
};

// Must be destroyed after all objects that use these functions.
using TracedFunctions = std::unique_ptr<tensorflow::FunctionLibraryDefinition, DropBeforePythonEnds>;

}  // namespace tensorflow_ipu
