#include "tensorflow_ipu/kernels/feeds/outfeeds.h"

namespace tensorflow_ipu {

core::Registry<core::Outfeed>& Outfeeds() {
  static auto* const outfeeds = new core::Registry<core::Outfeed>();
  return *outfeeds;
}

}  // namespace tensorflow_ipu
