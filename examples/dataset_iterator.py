"""Fits a line, a hundred steps a run: `iter(dataset)` feeds the program, and a `for` loop reads its losses."""

import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu

STEPS = 500
STEPS_PER_EXECUTION = 100  # How many steps the program takes before Python hears of it again.
BATCH_SIZE = 16

random = np.random.default_rng(seed=7)
x = random.uniform(-1, 1, 4096).astype(np.float32)
y = (3 * x - 2 + random.normal(0, 0.1, 4096)).astype(np.float32)
# A feed needs shapes that never change: `drop_remainder` drops a last batch that is not full.
dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(BATCH_SIZE, drop_remainder=True)

strategy = ipu.IPUStrategy()
with strategy.scope():
    slope, intercept = tf.Variable(0.0), tf.Variable(0.0)  # On the IPU, since they are made in its scope.
    optimizer = tf.keras.optimizers.SGD(0.1)
    iterator = iter(dataset)  # In the scope, this iterator belongs to programs: they call `next`.
    losses = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def train(steps, iterator, losses):
        """Takes so many steps. `tf.range` makes the loop part of the program."""
        for _ in tf.range(steps):
            inputs, targets = next(iterator)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((slope * inputs + intercept - targets) ** 2)
            gradients = tape.gradient(loss, [slope, intercept])
            optimizer.apply_gradients(zip(gradients, [slope, intercept], strict=True))
            losses.enqueue(loss)

    for begin in range(0, STEPS, STEPS_PER_EXECUTION):
        strategy.run(train, args=(STEPS_PER_EXECUTION, iterator, losses))
        # The queue yields what has come since it was last read: a loss each step of this run.
        of_this_run = [float(loss) for loss in losses]
        steps = f"steps {begin} to {begin + len(of_this_run) - 1}"
        print(f"{steps}: mean loss {np.mean(of_this_run):.4f}")
    print(f"y = {float(slope):.2f} x + {float(intercept):.2f}")
