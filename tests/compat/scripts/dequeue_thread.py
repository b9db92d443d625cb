# ruff: noqa: B905, T201
"""A thread prints the losses while the program trains on generated data."""

from threading import Thread

import numpy as np
import tensorflow as tf
from tensorflow.python import ipu
from tensorflow.python.keras.datasets import mnist

STEPS = 60

assert callable(mnist.load_data)  # The tests have no network, so this function is not called.

cfg = ipu.config.IPUConfig()
cfg.auto_select_ipus = 1
cfg.configure_ipu_system()


def make_dataset():
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, 512)
    images = np.zeros([512, 28, 28])
    images[np.arange(512), labels, labels] = 1.0
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(512, seed=1)
    dataset = dataset.map(lambda image, label: (tf.cast(image, tf.float32), tf.cast(label, tf.int32)))
    return dataset.batch(32, drop_remainder=True).repeat()


outfeed_queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()


@tf.function(jit_compile=True)
def training_step(steps, iterator, model, optimizer):
    for _ in tf.range(steps):
        images, labels = next(iterator)
        with tf.GradientTape() as tape:
            losses = tf.keras.losses.sparse_categorical_crossentropy(labels, model(images, training=True))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        outfeed_queue.enqueue(loss)


strategy = ipu.ipu_strategy.IPUStrategyV1()
with strategy.scope():
    model = tf.keras.models.Sequential(
        [
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = tf.keras.optimizers.SGD(1.0)
    iterator = iter(make_dataset())

    def dequeue():
        count = 0
        while count != STEPS:
            for loss in outfeed_queue:
                print("step", count, "loss", loss.numpy())
                count += 1

    thread = Thread(target=dequeue)
    thread.start()
    strategy.run(training_step, args=[STEPS, iterator, model, optimizer])
    thread.join()
