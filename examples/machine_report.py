"""Predicts the memory and time of a training loop on a real machine, and prints advice. Nothing is trained."""

from __future__ import annotations

import argparse

import tensorflow as tf

import tensorflow_ipu as ipu


def make_program(strategy: ipu.IPUStrategy, dtype: str, batch: int) -> tuple[tf.function, list[object]]:
    """Returns a program that trains a small network on images of type `dtype`, and its arguments."""
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Rescaling(1 / 255),
                tf.keras.layers.Dense(512, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        model.build((None, 784))
        optimizer = tf.keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        element = tf.zeros([batch, 784], dtype), tf.zeros([batch], tf.int32)
        iterator = iter(tf.data.Dataset.from_tensors(element).repeat())

    @tf.function
    def train(iterator: ipu.feeds.IPUIterator) -> None:
        for _ in tf.range(100):
            images, labels = next(iterator)
            with tf.GradientTape() as tape:
                logits = model(images)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return train, [iterator]


def main() -> None:
    """Prints a report, and compares two types of the images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", default="Bow Pod16", help="such as GC200 or IPU-POD64")
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    strategy = ipu.IPUStrategy()
    floats = strategy.report(*make_program(strategy, "float32", options.batch), machine=options.machine)
    integers = strategy.report(*make_program(strategy, "uint8", options.batch), machine=options.machine)
    print(floats)
    print()
    for name, report in (("float32", floats), ("uint8", integers)):
        print(
            f"images as {name}: {report.step_seconds * 1e6:.1f} us a step, {report.throughput(options.batch):,.0f} images/s"
        )


if __name__ == "__main__":
    main()
