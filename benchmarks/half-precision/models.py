"""Training programs of float16: loops that stay on the device, and models of `keras-fit`."""

from __future__ import annotations

import functools
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "keras-fit"))

import networks
import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu

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
    """Returns a training loop of an MLP with 784, 512, 512 and 10 units, as for digits."""
    make = _maker()
    weights = [make(784, 512), make(512, 512), make(512, 10)]
    rng = np.random.default_rng(1)
    x = tf.constant(rng.normal(size=(batch, 784)).astype(np.float16))
    labels = tf.constant(rng.integers(0, 10, batch))

    def loss() -> tf.Tensor:
        hidden = x
        for layer in weights[:-1]:
            hidden = tf.nn.relu(tf.matmul(hidden, layer))
        return _loss(tf.matmul(hidden, weights[-1]), labels)

    return _loop(loss, weights)


def transformer(width: int = 128, length: int = 64, batch: int = 8, layers: int = 2, heads: int = 4) -> Any:
    """Returns a training loop of a transformer with a vocabulary of 1000 words.

    Each block has attention and two dense layers, with a normalization before each of the two parts.
    """
    make = _maker()
    table = make(1000, width)
    blocks = [
        (make(width, 3 * width), make(width, width), make(width, 4 * width), make(4 * width, width))
        for _ in range(layers)
    ]
    tokens = tf.constant(np.random.default_rng(1).integers(0, 1000, (batch, length)), tf.int32)

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
        x = tf.gather(table, tokens) * tf.cast(8, HALF)
        for inwards, outwards, wide, narrow in blocks:
            x += attention(normalized(x), inwards, outwards)
            x += dense(tf.nn.gelu(dense(normalized(x), wide), approximate=True), narrow)
        logits = tf.matmul(tf.reshape(x, [-1, width]), table, transpose_b=True)
        return _loss(tf.reshape(logits, [batch, length, -1]), tokens)

    return _loop(loss, [table, *(weights for block in blocks for weights in block)])


def loop(make: Callable[[], Any], steps: int) -> Callable[[], Callable[[], object]]:
    """Returns a function that creates a program, which runs `steps` steps of a loop."""

    def program() -> Callable[[], object]:
        strategy = ipu.IPUStrategy()
        with strategy.scope():
            step = make()
        return lambda: strategy.run(step, (tf.constant(steps),))

    return program


def fit(network: networks.Network, stages: int = 1) -> Callable[[], Callable[[], object]]:
    """Returns a function that creates a `fit` of a network, which runs its steps in `stages` pipeline stages."""

    def program() -> Callable[[], object]:
        with ipu.IPUStrategy().scope():
            model = network.compiled(network.steps, "float16")
        if stages > 1:
            networks.pipelined(model, stages, network.steps)
        x, y = network.arrays(network.steps)
        return lambda: model.fit(x, y, batch_size=network.batch, verbose=0)

    return program


class Model(NamedTuple):
    """A program, and the settings with which it is measured.

    Attributes:
      make: Creates the program.
      steps: The number of steps in a call of the program.
      ipus: The number of IPUs.
      all: True to measure all behaviours, False to measure only rounding and exceptions.
    """

    make: Callable[[], Callable[[], object]]
    steps: int
    ipus: int = 1
    all: bool = False


_BERT = networks.Network(functools.partial(networks.bert_base, blocks=2), networks.words, 8, 10)
_U_NET = networks.NETWORKS["u-net"]._replace(steps=8)

MODELS = {
    "MLP": Model(loop(mlp, 30), 30, all=True),
    "transformer": Model(loop(transformer, 10), 10, all=True),
    "blocks": Model(loop(functools.partial(transformer, batch=2, layers=4), 10), 10),
    "BERT": Model(fit(_BERT), _BERT.steps),
    "U-Net": Model(fit(_U_NET, stages=4), _U_NET.steps, ipus=4),
}
