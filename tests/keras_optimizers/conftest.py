"""What the tests of Keras optimizers share: a small regression, trained on replicas and in plain Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

BATCHES = 8


@pytest.fixture(scope="session")
def regression() -> tuple[np.ndarray, np.ndarray]:
    """Micro-batches of a linear regression: inputs of shape [8, 4, 3] and targets of shape [8, 4, 1]."""
    random = np.random.default_rng(11)
    inputs = random.normal(size=(BATCHES, 4, 3)).astype(np.float32)
    targets = random.normal(size=(BATCHES, 4, 1)).astype(np.float32)
    return inputs, targets


def weights_of() -> list[Any]:
    """New weights of the regression: a kernel and a bias."""
    return [keras.Variable(np.ones((3, 1), np.float32)), keras.Variable(np.zeros(1, np.float32))]


def loss_of(weights: list[Any], x: Any, y: Any) -> Any:
    """The loss of the regression, averaged over the batch."""
    return tf.reduce_mean((tf.matmul(x, weights[0].value) + weights[1].value - y) ** 2)


@pytest.fixture
def plainly_trained(regression) -> Callable[..., list[np.ndarray]]:
    """`plainly_trained(optimizer, batches, share)` trains in eager TensorFlow.

    `batches` lists the micro-batches of each update, whose losses are added and multiplied by `share`.
    """

    def train(optimizer: Any, batches: list[list[int]], share: float = 1.0) -> list[np.ndarray]:
        inputs, targets = regression
        weights = weights_of()
        for together in batches:
            with tf.GradientTape() as tape:
                loss = tf.add_n([loss_of(weights, inputs[at], targets[at]) for at in together]) * share
            gradients = tape.gradient(loss, [weight.value for weight in weights])
            optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return [weight.numpy() for weight in weights]

    return train


@pytest.fixture
def trained_on(replicas, regression) -> Callable[..., list[list[np.ndarray]]]:
    """`trained_on(count, *makers)` trains on replicas, and gives the weights by each optimizer.

    Micro-batch t * count + r is that of replica r.
    """

    def train(count: int, *makers: Callable[[], Any]) -> list[list[np.ndarray]]:
        strategy = replicas(count)
        with strategy.scope():
            pairs = [(maker(), weights_of()) for maker in makers]
            batches = iter(tf.data.Dataset.from_tensor_slices(regression))

            @tf.function(jit_compile=True)
            def program(batches):
                for _ in tf.range(BATCHES // count):
                    x, y = next(batches)
                    for optimizer, weights in pairs:
                        with tf.GradientTape() as tape:
                            loss = optimizer.scale_loss(loss_of(weights, x, y))
                        gradients = tape.gradient(loss, [weight.value for weight in weights])
                        optimizer.apply_gradients(zip(gradients, weights, strict=True))

            strategy.run(program, args=(batches,))
        return [[weight.numpy() for weight in weights] for _, weights in pairs]

    return train


@pytest.fixture
def made_anew() -> Callable[..., list[Any]]:
    """`made_anew(*optimizers)` makes each anew from its configuration, and checks that it has the same."""

    def make(*optimizers: Any) -> list[Any]:
        again = [keras.optimizers.deserialize(keras.optimizers.serialize(each)) for each in optimizers]
        for first, second in zip(optimizers, again, strict=True):
            assert type(second) is type(first)
            assert keras.optimizers.serialize(second) == keras.optimizers.serialize(first)
        return again

    return make
