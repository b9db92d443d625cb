"""The smallest program that is fed and that hands results back: a loop on the device between two queues."""

import tensorflow as tf

import tensorflow_ipu as ipu

# What goes in: 1.0, 2.0, 3.0 and so on.
dataset = tf.data.Dataset.range(1, 1_000_000).map(lambda i: tf.cast(i, tf.float32))
infeed = ipu.IPUInfeedQueue(dataset)
# What comes out: whatever the program enqueues.
outfeed = ipu.IPUOutfeedQueue()


def body(total, x):
    """One iteration: gets the value that the last one returned, and the next element of the dataset."""
    total += x
    outfeed.enqueue({"element": x, "total": total})
    return total


@tf.function(jit_compile=True)
def program():
    """Ten iterations without a return to Python."""
    return ipu.loops.repeat(10, body, [0.0], infeed)


strategy = ipu.IPUStrategy()
with strategy.scope():
    # Begins to read the dataset; there is nothing to keep.
    infeed.initializer  # noqa: B018
    total = strategy.run(program)
    print("sum of the first ten numbers:", float(total))
    # A dict like the one that was enqueued; each of its tensors has the ten results stacked.
    results = outfeed.dequeue()
    print("elements:", results["element"].numpy())
    print("totals so far:", results["total"].numpy())

    # The dataset has a position: the next run takes the eleventh element first.
    strategy.run(program)
    print("elements of the second run:", outfeed.dequeue()["element"].numpy())
