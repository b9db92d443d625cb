#ifndef TENSORFLOW_IPU_KERNELS_HOST_USER_FUNCTIONS_H_
#define TENSORFLOW_IPU_KERNELS_HOST_USER_FUNCTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/registry.h"

namespace tensorflow_ipu {

// The interface of C++ functions that users load: inputs, their sizes in elements, outputs, attributes and name.
using UserFunction = void (*)(const std::vector<const void*>& data, const std::vector<uint32_t>& number_of_elements,
                              const std::vector<void*>& outputs, const std::string& attributes,
                              const std::string& name);

inline core::Registry<UserFunction>& UserFunctions() {
  static auto* const functions = new core::Registry<UserFunction>();
  return *functions;
}

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_USER_FUNCTIONS_H_
