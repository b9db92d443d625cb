// Chooses the layers of a program that the host's kernels compute faster than XLA's code. The factors were measured by
// benchmarks/layers on processors with AVX-512 and, by limiting oneDNN, with AVX2; docs/host_kernels.md has the rules
// for users.
#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_HOST_CHOICE_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_HOST_CHOICE_H_

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace tensorflow_ipu {

struct Lowered {
  tensorflow::XlaOpKernelContext* context;
  tensorflow::AttrSlice node;
  bool in_loop;  // XLA computes few convolutions fast in loops.
};

// XLA repeats random draws for each of their uses. It takes 10 to 40 times as long for max poolings and their
// gradients, 30 to 300 times for depthwise convolutions, and 5 to 20 times for bilinear resizing.
bool AlwaysFaster(const Lowered& layer);

// For types that oneDNN does not compute on this processor (float16, and bfloat16 without AVX-512), TensorFlow's own
// kernels take 4 to 10 times as long as XLA's code.
bool FasterWhereOneDnn(const Lowered& layer);

// As above. XLA also computes convolutions of one dimension below 1 MiB, and others of float32 with at most 8 Ki output
// positions and less than 20 Mi products, in 0.6 to 0.9 of the time: it divides them better among cores.
bool FasterConvolution(const Lowered& layer);

// XLA takes 2 to 5 times as long as TensorFlow's kernels for mean poolings whose windows overlap and for their
// gradients, and 0.7 to 1.0 of their time for other windows.
bool FasterWhereOverlapping(const Lowered& layer);

// In loops, XLA computes gradients of convolutions of any type by its slowest code, and not all loops are known here.
// The gradients that XLA computes fast were rewritten before (`replicas/_convolutions.py`).
bool FasterGradient(const Lowered& layer);

// XLA normalizes batches of less than 2 MiB of float32 (without AVX-512: of less than 3 MiB or 32 features) in 0.2 to
// 1.0 of the time, since oneDNN divides them badly among cores. For larger ones it takes 1.2 to 9 times as long: it
// sums over all but the last dimension a few features at a time, and rereads the memory for each.
bool FasterBatchNorm(const Lowered& layer);

// XLA is faster at picking few of many elements, and takes 2 to 7 times as long to sort all.
bool FasterForMany(const Lowered& layer);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_HOST_CHOICE_H_
