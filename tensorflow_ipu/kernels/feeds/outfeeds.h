#ifndef TENSORFLOW_IPU_KERNELS_FEEDS_OUTFEEDS_H_
#define TENSORFLOW_IPU_KERNELS_FEEDS_OUTFEEDS_H_

#include "tensorflow_ipu/kernels/core/outfeed.h"
#include "tensorflow_ipu/kernels/core/registry.h"

namespace tensorflow_ipu {

core::Registry<core::Outfeed>& Outfeeds();

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_FEEDS_OUTFEEDS_H_
