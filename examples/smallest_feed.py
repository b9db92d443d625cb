"""Runs the smallest program with an infeed and an outfeed: a loop on the device."""

import tensorflow as tf

import tensorflow_ipu as ipu

# The infeed's elements are 1.0, 2.0, 3.0 and so on.
dataset = tf.data.Dataset.range(1, 1_000_000).map(lambda i: tf.cast(i, tf.float32))
infeed = ipu.IPUInfeedQueue(dataset)
# The outfeed gets the elements that the program enqueues.
outfeed = ipu.IPUOutfeedQueue()


def body(total, x):
    """Runs one iteration. `total` is the result of the previous one, and `x` is the next element of the dataset."""
    total += x
    outfeed.enqueue({"element": x, "total": total})
    return total


@tf.function(jit_compile=True)
def program():
    """Runs ten iterations without a return to Python."""
    return ipu.loops.repeat(10, body, [0.0], infeed)


strategy = ipu.IPUStrategy()
with strategy.scope():
    # Accessing `initializer` starts to read the dataset. The value is not needed.
    infeed.initializer  # noqa: B018
    total = strategy.run(program)
    print("sum of the first ten numbers:", float(total))
    # A dict with the keys of the enqueued ones. Each tensor in it has ten stacked results.
    results = outfeed.dequeue()
    print("elements:", results["element"].numpy())
    print("totals so far:", results["total"].numpy())

    # The position in the dataset is kept, so the next run begins with the eleventh element.
    strategy.run(program)
    print("elements of the second run:", outfeed.dequeue()["element"].numpy())
