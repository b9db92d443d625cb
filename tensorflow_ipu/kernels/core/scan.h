// Whether a tensor has numbers beyond a limit: one pass over its bits.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_SCAN_H_
#define TENSORFLOW_IPU_KERNELS_CORE_SCAN_H_

#include <cstdint>

namespace tensorflow_ipu::core {

// Whether the magnitude of an element has bits from `limit` on. Infinities and NaNs have larger bits than numbers.
bool HasHalvesFrom(uint16_t limit, const uint16_t* halves, int64_t count);
bool HasFloatsFrom(uint32_t limit, const uint32_t* floats, int64_t count);

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_SCAN_H_
