"""Fixtures for tests of Keras optimizers: a small regression, trained on replicas and in plain Keras."""

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
    """Creates weights of the regression: a kernel and a bias."""
    return [keras.Variable(np.ones((3, 1), np.float32)), keras.Variable(np.zeros(1, np.float32))]


def loss_of(weights: list[Any], x: Any, y: Any) -> Any:
    """Returns the loss of the regression, averaged over the batch."""
    return tf.reduce_mean((tf.matmul(x, weights[0].value) + weights[1].value - y) ** 2)


@pytest.fixture
def plainly_trained(regression) -> Callable[..., list[np.ndarray]]:
    """`plainly_trained(optimizer, batches, share)` trains in eager TensorFlow.

    `batches` lists the micro-batches of each update. Their losses are added and multiplied by `share`.
    """

    def train(optimizer: Any, batches: list[list[int]], share: float = 1.0) -> list[np.ndarray]:
        inputs, targets = regression
        weights = weights_of()
        for micro_batches in batches:
            with tf.GradientTape() as tape:
                loss = tf.add_n([loss_of(weights, inputs[index], targets[index]) for index in micro_batches]) * share
            gradients = tape.gradient(loss, [weight.value for weight in weights])
            optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return [weight.numpy() for weight in weights]

    return train


@pytest.fixture
def trained_on(replicas, regression) -> Callable[..., list[list[np.ndarray]]]:
    """`trained_on(count, *makers)` trains on replicas, and returns the weights for each optimizer.

    Replica r gets the micro-batches t * count + r.
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
def recreated() -> Callable[..., list[Any]]:
    """`recreated(*optimizers)` creates optimizers from their configurations, and checks that the configurations are equal."""

    def make(*optimizers: Any) -> list[Any]:
        copies = [keras.optimizers.deserialize(keras.optimizers.serialize(optimizer)) for optimizer in optimizers]
        for optimizer, copy in zip(optimizers, copies, strict=True):
            assert type(copy) is type(optimizer)
            assert keras.optimizers.serialize(copy) == keras.optimizers.serialize(optimizer)
        return copies

    return make
