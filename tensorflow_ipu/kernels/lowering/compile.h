// What other folders use of the compilation of programs.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_ipu/kernels/core/metrics.h"

namespace tensorflow_ipu {

// Compiles a function for the inputs of a kernel without running it. Variables keep their values. The executable is
// stored in `folder`, or where the process is configured to if that is empty.
absl::Status Compile(tensorflow::OpKernelContext* context, const tensorflow::NameAttrList& function,
                     const std::string& folder, const std::string& key);

// The times of all compilations of this process since this library was loaded, from graph to machine code.
const core::Samples& CompileTimes();

}  // namespace tensorflow_ipu
