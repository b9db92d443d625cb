// The end of Python, which threads of ours may outlive: a dataset cannot be stopped in the midst of an operation.
#ifndef TENSORFLOW_IPU_KERNELS_HOST_PYTHON_END_H_
#define TENSORFLOW_IPU_KERNELS_HOST_PYTHON_END_H_

#include <functional>
#include <memory>

#include "tensorflow/core/framework/function.h"

namespace tensorflow_ipu {

// The process ends, and with it Python: from now on threads of ours leave alone what is Python's. Waits for a call of
// BeforePythonEnds that is under way, so the caller must not hold Python's lock.
void EndPython();

bool PythonHasEnded();

// Calls `call`, which may need Python, and keeps Python from ending meanwhile. Returns whether it called: not where
// Python has ended. Thread-safe.
bool BeforePythonEnds(const std::function<void()>& call);

// Functions know by which lines of Python their operations were made, and take Python's lock when they let go of that.
struct DropBeforePythonEnds {
  void operator()(const tensorflow::FunctionLibraryDefinition* functions) const {
    BeforePythonEnds([functions] { delete functions; });  // Else the process takes them along.
  }
};

// Has to go last of all that uses these functions or parts of them: then what goes before leaves Python alone.
using TracedFunctions = std::unique_ptr<tensorflow::FunctionLibraryDefinition, DropBeforePythonEnds>;

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_PYTHON_END_H_
