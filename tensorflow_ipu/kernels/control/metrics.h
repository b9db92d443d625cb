// Totals of deleted queues.
#ifndef TENSORFLOW_IPU_KERNELS_CONTROL_METRICS_H_
#define TENSORFLOW_IPU_KERNELS_CONTROL_METRICS_H_

#include "tensorflow_ipu/kernels/core/metrics.h"

namespace tensorflow_ipu {

enum class Queue { kInfeed, kOutfeed };

// Adds the totals of a queue that is deleted.
void NoteGone(const core::Passed& passed, Queue kind);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_CONTROL_METRICS_H_
