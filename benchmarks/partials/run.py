"""Compares steps of float16 with float and half partial sums with steps that use XLA's sums."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np
import tensorflow as tf
from measure import interleave, median, print_table, ratio

import tensorflow_ipu as ipu

ROUNDS = 7
STEPS = 10
TARGET = 3.0


def mlp(x, weights):
    """Returns the output of dense layers."""
    for weight in weights:
        x = tf.nn.relu(x @ weight)
    return x


def attention(x, weights):
    """Returns the output of a block of attention and two dense layers; `x` has the shape [batch, positions, features]."""
    query, key, value, wide, narrow = weights
    scores = tf.nn.softmax(tf.einsum("bid,bjd->bij", x @ query, x @ key) / 16.0)
    x += tf.einsum("bij,bjd->bid", scores, x @ value)
    return x + tf.nn.gelu(x @ wide) @ narrow


def convolutions(x, weights):
    """Returns the output of three convolutions; the second one has strides."""
    for weight, stride in zip(weights, (1, 2, 1), strict=True):
        x = tf.nn.relu(tf.nn.conv2d(x, weight, stride, "SAME"))
    return x


MODELS = {
    "MLP, 3 x 512, batch 64": (mlp, [64, 512], [[512, 512]] * 3),
    "attention, 8 x 64 x 256": (attention, [8, 64, 256], [[256, 256]] * 3 + [[256, 1024], [1024, 256]]),
    "convolutions 3x3, 8 x 28 x 28 x 64": (convolutions, [8, 28, 28, 64], [[3, 3, 64, 64]] * 3),
}


def random(shape):
    """Returns random float16 values, scaled so that sums neither grow nor vanish."""
    fan_in = np.prod(shape[:-1])
    return (np.random.default_rng(0).normal(size=shape) / np.sqrt(fan_in)).astype(np.float16)


def contestant(call, shape, shapes, options):
    """Returns a call of a program that runs `STEPS` steps, compiled with `options`."""
    ipu.config.reset_ipu_configuration()
    config = ipu.IPUConfig()
    config.matmuls.poplar_options = config.convolutions.poplar_options = options
    config.configure_ipu_system()
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        weights = [tf.Variable(random(weight_shape)) for weight_shape in shapes]

    @tf.function(jit_compile=True)
    def steps(x):
        for _ in tf.range(STEPS):
            with tf.GradientTape() as tape:
                y = call(x, [tf.identity(weight) for weight in weights])
                loss = tf.reduce_mean(tf.square(tf.cast(y, tf.float32)))
            for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                weight.assign_sub(tf.constant(1e-3, tf.float16) * gradient)

    prepared = strategy.prepare(steps, args=[tf.constant(random(shape))])
    prepared.run()
    return prepared.run


def main():
    """Prints a row for each model."""
    rows = []
    for name, (call, shape, shapes) in MODELS.items():
        ways = {}
        for way, options in (("XLA", {}), ("float", {"partialsType": "float"}), ("half", {"partialsType": "half"})):
            ways[way] = contestant(call, shape, shapes, options)
        times = interleave(ways, ROUNDS)
        milliseconds = [median(times, way, STEPS) / 1e3 for way in ways]
        rows.append([name, *milliseconds, ratio(times, "XLA", "float"), ratio(times, "XLA", "half"), TARGET])
    header = ["step of float16", "XLA, ms", "float, ms", "half, ms", "float / XLA", "half / XLA", "at most"]
    print_table("Partial sums", header, rows)


if __name__ == "__main__":
    main()
