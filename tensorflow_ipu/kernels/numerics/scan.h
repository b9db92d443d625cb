// The search for large values and NaNs in a tensor.
#pragma once

#include <cstdint>

namespace tensorflow_ipu::core {

// Return true if the bits of an element's magnitude are at least `limit`. The bits of infinities and NaNs are the
// largest.
bool HasHalvesFrom(uint16_t limit, const uint16_t* halves, int64_t count);
bool HasFloatsFrom(uint32_t limit, const uint32_t* floats, int64_t count);

}  // namespace tensorflow_ipu::core
