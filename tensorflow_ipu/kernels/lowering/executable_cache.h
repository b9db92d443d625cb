// The cache of compiled programs on disk.
#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_EXECUTABLE_CACHE_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_EXECUTABLE_CACHE_H_

#include <cstdint>
#include <string>

namespace tensorflow_ipu {

// Programs that are compiled from now on are stored in this folder and loaded from it; an empty name ends that. The key
// says what a program depends on besides its code, such as versions and the processor. Former folders are left as they
// are.
void SetExecutableCache(const std::string& folder, int64_t max_bytes, const std::string& key);

// Also loads programs from this folder, which is never written to.
void AddExecutables(const std::string& folder, const std::string& key);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_EXECUTABLE_CACHE_H_
