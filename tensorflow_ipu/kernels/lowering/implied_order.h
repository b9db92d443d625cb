// Programs whose queues are used in order as it is.
#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_IMPLIED_ORDER_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_IMPLIED_ORDER_H_

#include <memory>

#include "xla/hlo/builder/xla_builder.h"
#include "xla/hlo/builder/xla_computation.h"

namespace tensorflow_ipu {

// Says of an instruction that it reads and advances the order of its program.
void MarkAsOrdered(xla::XlaOp instruction);

// The program with calls of its queues that take no order, and leave their states as they are; null where it needs the
// order, and stays what it is.
//
// XLA takes some nanoseconds for each operand and each result of a call, so that a small element's order costs as much
// as the element. In the usual loop, which dequeues, computes and enqueues,
//
//   order, x = dequeue(order, infeed)              x = dequeue(infeed)
//   order = enqueue(order, outfeed, f(x))          enqueue(outfeed, f(x), x)
//
// an iteration ends before the next one begins, and within one, an enqueue that is given what a dequeue returned cannot
// come before it, whatever XLA makes of f. So it is with all ordered calls in one computation, of which all but the
// last are dequeues of an element with a small tensor.
std::shared_ptr<xla::XlaComputation> WithoutImpliedOrder(const xla::XlaComputation& program);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_IMPLIED_ORDER_H_
