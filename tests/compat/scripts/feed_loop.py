# ruff: noqa: B018, T201
"""A loop computes the sum and the difference of two vectors ten times, with queues and the old module names."""

import tensorflow as tf
from tensorflow.python.ipu import ipu_infeed_queue, ipu_outfeed_queue, ipu_strategy, loops
from tensorflow.python.ipu.config import IPUConfig

dataset = tf.data.Dataset.from_tensors(tf.constant(1.0, shape=[800])).map(lambda x: [x, x]).repeat()
infeed_queue = ipu_infeed_queue.IPUInfeedQueue(dataset)
outfeed_queue = ipu_outfeed_queue.IPUOutfeedQueue()


def body(counter, left, right):
    outfeed_queue.enqueue({"d1": left + right, "d2": left - right})
    return counter + 1


@tf.function(jit_compile=True)
def net():
    return loops.repeat(10, body, [0], infeed_queue)


config = IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()
strategy = ipu_strategy.IPUStrategyV1()

with strategy.scope():
    infeed_queue.initializer
    print("counter", int(strategy.run(net)))
    result = outfeed_queue.dequeue()

for name, rows in sorted(result.items()):
    print(name, tuple(rows.shape), float(tf.reduce_min(rows)), float(tf.reduce_max(rows)))
