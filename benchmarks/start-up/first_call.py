"""Prints the seconds that the first call of a training loop takes: `first_call.py plain` or `first_call.py ipu`."""

from __future__ import annotations

import sys
import time

import keras
import tensorflow as tf

OURS = sys.argv[1] == "ipu"
if OURS:
    import tensorflow_ipu as ipu

    strategy = ipu.IPUStrategy()
else:
    strategy = tf.distribute.get_strategy()

with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])
    model.build((None, 784))
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function(jit_compile=True)
def train(x, y, n):
    """Makes `n` training steps."""
    for _ in tf.range(n):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


arguments = tf.ones([32, 784]), tf.ones([32], tf.int32), tf.constant(1)
start = time.perf_counter()
if OURS:
    strategy.run(train, args=arguments)
else:
    train(*arguments)
print(time.perf_counter() - start)
