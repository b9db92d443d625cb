// What other folders use of the compilation of programs.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_ipu/kernels/support/metrics.h"

namespace tensorflow_ipu {

// An executable that the caller keeps, with a checksum.
struct KeptExecutable {
  std::string name;
  std::string packed;
};

// Compiles a function for the inputs of a kernel without running it. Variables keep their values. The executable is
// stored where the process is configured to, or in `kept` if that is set. `key` is then what it depends on besides its
// program.
absl::Status Compile(tensorflow::OpKernelContext* context, const tensorflow::NameAttrList& function,
                     const std::string& key = "", KeptExecutable* kept = nullptr);

// The times of all compilations of this process since this library was loaded, from graph to machine code.
const core::Samples& CompileTimes();

}  // namespace tensorflow_ipu
