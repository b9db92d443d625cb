"""n replicas that take the mean of their gradients train as one replica does with n times the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.ops.replica_variables import read_groups

STEPS, BATCH, FEATURES = 6, 4, 5
KERAS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.05),
}


def data(seed: int, count: int, steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """Examples for so many steps of so many batches: [steps * count * BATCH, ...]."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(steps * count * BATCH, FEATURES)).astype(np.float32)
    return x, np.tanh(x @ random.normal(size=(FEATURES, 2))).astype(np.float32)


def parameters(seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    shapes = [(FEATURES, 3), (3,), (3, 2), (2,)]
    return [tf.Variable(random.normal(size=shape).astype(np.float32)) for shape in shapes]


def loss_of(weights: list[Any], x: Any, y: Any) -> Any:
    hidden = tf.tanh(x @ weights[0] + weights[1])
    return tf.reduce_mean((hidden @ weights[2] + weights[3] - y) ** 2)


def plainly(minimize: Callable[[Any, list[Any]], Any], seed: int, count: int) -> list[np.ndarray]:
    """Trains in eager TensorFlow, `count` times the batch a step."""
    weights = parameters(seed)
    x, y = data(seed, count)
    for step in range(STEPS):
        rows = slice(step * count * BATCH, (step + 1) * count * BATCH)
        minimize(lambda rows=rows: loss_of(weights, x[rows], y[rows]), weights)
    return [weight.numpy() for weight in weights]


def on_replicas(strategy: Any, make: Callable[[], Any], seed: int, count: int) -> list[np.ndarray]:
    """Trains on so many replicas, in one run of one program; each gets its batch of every step."""
    with strategy.scope():
        weights = parameters(seed)
        minimize = make()
        iterator = iter(tf.data.Dataset.from_tensor_slices(data(seed, count)).batch(BATCH, drop_remainder=True))

    @tf.function(jit_compile=True)
    def program(iterator: Any) -> None:
        for _ in tf.range(STEPS):
            x, y = next(iterator)
            minimize(lambda x=x, y=y: loss_of(weights, x, y), weights)

    strategy.run(program, (iterator,))
    for of_replicas in map(read_groups, weights):  # To the last bit, on all replicas.
        assert (of_replicas.numpy() == of_replicas[0].numpy()).all()
    return [weight.numpy() for weight in weights]


def keras_minimize(make: Any, scale: float) -> Any:
    def made() -> Any:
        optimizer = make()

        def minimize(loss: Any, weights: list[Any]) -> None:
            with tf.GradientTape() as tape:
                value = loss() * scale
            optimizer.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))

        return minimize

    return made


@pytest.mark.parametrize(("count", "name"), [(2, "momentum"), (4, "nesterov"), (4, "adam")])
def test_keras_optimizer_sums_so_a_loss_divided_by_the_replicas_trains_as_the_whole_batch(
    count: int, name: str, replicas: Any
) -> None:
    expected = plainly(keras_minimize(KERAS[name], 1.0)(), 3, count)
    trained = on_replicas(replicas(count), keras_minimize(KERAS[name], 1.0 / count), 3, count)
    for got, wanted in zip(trained, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)
