// The compilation of programs, and its times.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_ipu/kernels/support/metrics.h"

namespace tensorflow_ipu {

// An executable with a checksum, which the caller stores.
struct KeptExecutable {
  std::string name;
  std::string packed;
};

// Compiles a function for the inputs of a kernel without running it. Variables keep their values. The executable is
// stored in the process's cache or, if `kept` is set, in `kept`. In the latter case, `key` describes everything that
// the executable depends on, except for its program.
absl::Status Compile(tensorflow::OpKernelContext* context, const tensorflow::NameAttrList& function,
                     const std::string& key = "", KeptExecutable* kept = nullptr);

// Returns the times of all compilations since this library was loaded, from graph to machine code.
const core::Samples& CompileTimes();

}  // namespace tensorflow_ipu
