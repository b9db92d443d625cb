// The search for large numbers and for NaNs in a tensor.
#pragma once

#include <cstdint>

namespace tensorflow_ipu::core {

// Whether the magnitude of an element has bits of at least `limit`. Those of infinities and NaNs are the largest.
bool HasHalvesFrom(uint16_t limit, const uint16_t* halves, int64_t count);
bool HasFloatsFrom(uint32_t limit, const uint32_t* floats, int64_t count);

}  // namespace tensorflow_ipu::core
