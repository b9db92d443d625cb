// Which layers of a program the host's kernels compute in less time than XLA's code does.
//
// What is said here was measured, by benchmarks/layers, on processors with AVX-512 and, by oneDNN limited to it, with
// AVX2. The figures are there; docs/host_kernels.md has the rules for users.
#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_HOST_CHOICE_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_HOST_CHOICE_H_

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace tensorflow_ipu {

// A node that is being lowered.
struct Lowered {
  tensorflow::XlaOpKernelContext* context;
  tensorflow::AttrSlice node;
  bool in_loop;  // Where XLA has fast code for few convolutions.
};

// Draws are a call for each of their uses by XLA. Poolings of maxima and their gradients take it 10 to 40 times as
// long, depthwise convolutions 30 to 300 times, bilinear resizing 5 to 20 times.
bool AlwaysFaster(const Lowered& layer);

// Of types that oneDNN does not compute on this processor, TensorFlow's own kernel takes 4 to 10 times as long as XLA's
// code: for float16, and for bfloat16 without AVX-512.
bool FasterWhereOneDnn(const Lowered& layer);

// Likewise; and of one dimension, XLA computes convolutions of less than 1 MiB in 0.6 to 0.9 of the time, and
// others of float32, of at most 8 Ki places (of the result, in all images) and less than 20 Mi products in 0.6 to 0.9:
// it divides these among cores better than TensorFlow's kernels do.
bool FasterConvolution(const Lowered& layer);

// XLA computes mean poolings whose windows overlap, and their gradients, in 2 to 5 times as long as TensorFlow's
// kernel, and those of other windows in 0.7 to 1.0 of its time.
bool FasterWhereOverlapping(const Lowered& layer);

// In loops, XLA computes gradients of convolutions by its slowest code, whatever the type, and not all loops are known.
// Those that it is better at were given another form already, before they came here (`replicas/_convolutions.py`).
bool FasterGradient(const Lowered& layer);

// Of less than 2 MiB of float32, and without AVX-512 of less than 3 MiB or of less than 32 features, XLA normalizes
// batches in 0.2 to 1.0 of the time, since oneDNN divides these among cores badly. Of more it takes 1.2 to 9 times as
// long: it sums over all but the last dimension feature by feature, which reads the memory anew for each few.
bool FasterBatchNorm(const Lowered& layer);

// XLA picks a few of many in less time, and orders all in 2 to 7 times as much.
bool FasterForMany(const Lowered& layer);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_HOST_CHOICE_H_
