"""Fits a line in runs of 100 steps. `iter(dataset)` feeds the program, and a `for` loop reads its losses."""

import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu

STEPS = 500
STEPS_PER_EXECUTION = 100  # The number of steps that the program runs before it returns to Python.
BATCH_SIZE = 16

random = np.random.default_rng(seed=7)
x = random.uniform(-1, 1, 4096).astype(np.float32)
y = (3 * x - 2 + random.normal(0, 0.1, 4096)).astype(np.float32)
# The shapes of elements must not change, so `drop_remainder` drops an incomplete last batch.
dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(BATCH_SIZE, drop_remainder=True)

strategy = ipu.IPUStrategy()
with strategy.scope():
    slope, intercept = tf.Variable(0.0), tf.Variable(0.0)  # In the scope, variables are created on the IPU.
    optimizer = tf.keras.optimizers.SGD(0.1)
    iterator = iter(dataset)  # In the scope, this iterator is an infeed: programs call `next` on it.
    losses = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def train(steps, iterator, losses):
        """Runs `steps` steps. Because of `tf.range`, the loop is a part of the program."""
        for _ in tf.range(steps):
            inputs, targets = next(iterator)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((slope * inputs + intercept - targets) ** 2)
            gradients = tape.gradient(loss, [slope, intercept])
            optimizer.apply_gradients(zip(gradients, [slope, intercept], strict=True))
            losses.enqueue(loss)

    for begin in range(0, STEPS, STEPS_PER_EXECUTION):
        strategy.run(train, args=(STEPS_PER_EXECUTION, iterator, losses))
        # The queue yields the elements that have not been read yet: one loss for each step of this run.
        new_losses = [float(loss) for loss in losses]
        steps = f"steps {begin} to {begin + len(new_losses) - 1}"
        print(f"{steps}: mean loss {np.mean(new_losses):.4f}")
    print(f"y = {float(slope):.2f} x + {float(intercept):.2f}")
