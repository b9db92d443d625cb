"""Prints the seconds of a first call: `first_call.py plain|ipu loop|activations`.

`loop` calls a training loop. `activations` calls 50 operations that the package lowers without MLIR.
"""

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
    """Runs `n` training steps."""
    for _ in tf.range(n):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


@tf.function(jit_compile=True)
def activate(x):
    """Computes activations of ten layers."""
    for _ in range(10):
        x = tf.sqrt(tf.exp(tf.nn.softmax(tf.tanh(tf.nn.relu(x @ x)))))
    return x


function, arguments = {
    "loop": (train, (tf.ones([32, 784]), tf.ones([32], tf.int32), tf.constant(1))),
    "activations": (activate, (tf.ones([8, 8]),)),
}[sys.argv[2]]
start = time.perf_counter()
if OURS:
    strategy.run(function, args=arguments)
else:
    function(*arguments)
print(time.perf_counter() - start)
