"""Training loops of float16 that stay on the device: each is called with how many steps to make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

HALF = tf.float16
RATE = 0.01


def _loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32))
    return tf.reduce_mean(losses)


def _loop(loss: Callable[[], tf.Tensor], variables: list[tf.Variable]) -> Any:
    @tf.function(jit_compile=True)
    def steps(count: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(count):
            with tf.GradientTape() as tape:
                value = loss()
            for variable, gradient in zip(variables, tape.gradient(value, variables), strict=True):
                variable.assign_sub(tf.cast(RATE, HALF) * tf.convert_to_tensor(gradient))
        return value

    return steps


def _maker() -> Callable[..., tf.Variable]:
    rng = np.random.default_rng(0)
    return lambda *shape: tf.Variable((rng.normal(size=shape) * 0.02).astype(np.float16))


def mlp(batch: int = 64) -> Any:
    """784 - 512 - 512 - 10, as for digits."""
    make = _maker()
    weights = [make(784, 512), make(512, 512), make(512, 10)]
    rng = np.random.default_rng(1)
    x = tf.constant(rng.normal(size=(batch, 784)).astype(np.float16))
    labels = tf.constant(rng.integers(0, 10, batch))

    def loss() -> tf.Tensor:
        hidden = x
        for one in weights[:-1]:
            hidden = tf.nn.relu(tf.matmul(hidden, one))
        return _loss(tf.matmul(hidden, weights[-1]), labels)

    return _loop(loss, weights)


def transformer(width: int = 128, length: int = 64, batch: int = 8, layers: int = 2, heads: int = 4) -> Any:
    """Blocks of attention and of two dense layers, each behind a normalization, with 1000 words."""
    make = _maker()
    table = make(1000, width)
    blocks = [
        (make(width, 3 * width), make(width, width), make(width, 4 * width), make(4 * width, width))
        for _ in range(layers)
    ]
    words = tf.constant(np.random.default_rng(1).integers(0, 1000, (batch, length)), tf.int32)

    def dense(x: tf.Tensor, weights: tf.Variable) -> tf.Tensor:
        rows = tf.matmul(tf.reshape(x, [batch * length, -1]), weights)
        return tf.reshape(rows, [batch, length, -1])

    def normalized(x: tf.Tensor) -> tf.Tensor:
        centred = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
        return centred * tf.math.rsqrt(variance + tf.cast(1e-3, HALF))

    def split(x: tf.Tensor) -> tf.Tensor:
        return tf.transpose(tf.reshape(x, [batch, length, heads, -1]), [0, 2, 1, 3])

    def attention(x: tf.Tensor, inwards: tf.Variable, outwards: tf.Variable) -> tf.Tensor:
        query, key, value = (split(part) for part in tf.split(dense(x, inwards), 3, -1))
        scores = tf.matmul(query, key, transpose_b=True) * tf.cast((width // heads) ** -0.5, HALF)
        return dense(tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3]), outwards)

    def loss() -> tf.Tensor:
        x = tf.gather(table, words) * tf.cast(8, HALF)
        for inwards, outwards, wide, narrow in blocks:
            x += attention(normalized(x), inwards, outwards)
            x += dense(tf.nn.gelu(dense(normalized(x), wide), approximate=True), narrow)
        logits = tf.matmul(tf.reshape(x, [-1, width]), table, transpose_b=True)
        return _loss(tf.reshape(logits, [batch, length, -1]), words)

    return _loop(loss, [table, *(one for block in blocks for one in block)])


MODELS: list[tuple[str, Callable[[], Any], int]] = [("MLP", mlp, 30), ("transformer", transformer, 10)]
