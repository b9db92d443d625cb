"""Trains an autoencoder whose halves are on two IPUs, and predicts the memory and time of each IPU on a machine."""

from __future__ import annotations

import argparse

import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import sharding
from tensorflow_ipu.scopes import ipu_shard

PIXELS, CODE = 64, 8


def make_program(strategy: ipu.IPUStrategy, steps: int) -> tuple[tf.function, ipu.IPUInfeedQueue]:
    """Returns a training program with its encoder on IPU 0 and its decoder on IPU 1, and the queue that it reads."""
    rng = np.random.default_rng(1)
    images = rng.normal(size=[256, CODE]) @ rng.normal(size=[CODE, PIXELS]) / 8  # Each image depends on `CODE` numbers.
    dataset = tf.data.Dataset.from_tensor_slices(tf.cast(images, tf.float32)).batch(32, drop_remainder=True).repeat()
    with strategy.scope():
        encode = tf.Variable(tf.random.stateless_normal([PIXELS, CODE], [1, 2], stddev=0.3))
        decode = tf.Variable(tf.random.stateless_normal([CODE, PIXELS], [3, 4], stddev=0.3))
        infeed = ipu.IPUInfeedQueue(dataset)
        infeed.initializer  # noqa: B018  (The access starts it.)
        optimizer = tf.keras.optimizers.Adam(0.01)
        optimizer.build([encode, decode])

    def step(first: tf.Tensor, _: tf.Tensor, batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            with ipu_shard(0):
                code = batch @ encode
            with ipu_shard(1):
                loss = tf.reduce_mean((code @ decode - batch) ** 2)
        gradients = tape.gradient(loss, [encode, decode])
        assert [sharding.get_sharding(gradient) for gradient in gradients] == [[0], [1]]
        optimizer.apply_gradients(zip(gradients, [encode, decode], strict=True))
        return tf.where(first < 0, loss, first), loss

    @tf.function
    def train() -> list[tf.Tensor]:
        return ipu.loops.repeat(steps, step, [-1.0, 0.0], infeed)

    return train, infeed


def main() -> None:
    """Prints the first and the last loss, and the memory and time of each IPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--machine", default="Bow Pod16")
    options = parser.parse_args()
    config = ipu.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    strategy = ipu.IPUStrategy()
    train, infeed = make_program(strategy, options.steps)
    first, last = strategy.run(train)
    print(f"loss {first:.3f} before, {last:.4f} after {options.steps} steps")
    report = strategy.report(train, machine=options.machine)
    for memory in report.memories:
        share = report.ipu_seconds(memory.ipu) / report.seconds
        print(f"IPU {memory.ipu}: {memory.variables} bytes of variables, works {share:.0%} of the time")
    infeed.deleter  # noqa: B018


if __name__ == "__main__":
    main()
