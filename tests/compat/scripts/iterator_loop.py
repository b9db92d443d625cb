# ruff: noqa: B905, T201
"""A Keras model trained in a custom loop, with `iter(dataset)` in and an outfeed that is summed up out."""

import tensorflow as tf
from tensorflow.python import ipu

config = ipu.config.IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()


def make_dataset():
    x = tf.random.stateless_uniform([64, 3], seed=[1, 2])
    y = tf.reduce_sum(x, axis=1, keepdims=True)
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(8, drop_remainder=True)


@tf.function(jit_compile=True)
def training_loop(iterator, steps, queue, model, optimizer):
    for _ in tf.range(steps):
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        queue.enqueue(loss)


strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1, kernel_initializer="zeros")])
    optimizer = tf.keras.optimizers.SGD(0.2)
    iterator = iter(make_dataset())
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    steps = 10
    for begin in range(0, 50, steps):
        strategy.run(training_loop, args=(iterator, steps, queue, model, optimizer))
        print(f"{begin} {sum(queue) / steps:.6f}")
    print(" ".join(f"{float(weight):.6f}" for weight in tf.reshape(model.trainable_variables[0], [-1])))
