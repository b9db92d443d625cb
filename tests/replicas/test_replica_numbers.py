"""n replicas that take the mean of their gradients train as one replica does with n times the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorflow_ipu as ipu
from tensorflow_ipu.config import reset_ipu_configuration
from tensorflow_ipu.ops.cross_replica_ops import cross_replica_mean, cross_replica_sum
from tensorflow_ipu.optimizers import CrossReplicaGradientAccumulationOptimizerV2, CrossReplicaOptimizer

STEPS, BATCH, FEATURES = 6, 4, 5
TF1 = tf.compat.v1.train

KERAS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.05),
}
OLD = {
    "descent": lambda: TF1.GradientDescentOptimizer(0.1),
    "momentum": lambda: TF1.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: TF1.AdamOptimizer(0.05),
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


def on_replicas(make: Callable[[], Callable[[Any, list[Any]], Any]], seed: int, count: int) -> list[np.ndarray]:
    """Trains on so many replicas, in one run of one program; each gets its batch of every step."""
    reset_ipu_configuration()
    config = ipu.IPUConfig()
    config.auto_select_ipus = count
    config.configure_ipu_system()
    strategy = ipu.IPUStrategy()
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
    equal: list[Any] = []
    for weight in weights:
        queue = ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)
        strategy.run(tf.function(lambda weight=weight, queue=queue: [queue.enqueue(weight)][:0], jit_compile=True))
        equal.append(queue.dequeue().numpy())
    for of_replicas in equal:  # To the last bit, on all replicas.
        assert (of_replicas == of_replicas[0]).all()
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
    count: int, name: str
) -> None:
    expected = plainly(keras_minimize(KERAS[name], 1.0)(), 3, count)
    trained = on_replicas(keras_minimize(KERAS[name], 1.0 / count), 3, count)
    for got, wanted in zip(trained, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)


def old_minimize(make: Any) -> Any:
    def made() -> Any:
        optimizer = make()
        return lambda loss, weights: optimizer.apply_gradients(optimizer.compute_gradients(loss, weights))

    return made


@pytest.mark.parametrize("name", OLD)
def test_cross_replica_optimizer_trains_as_the_whole_batch(name: str) -> None:
    expected = plainly(old_minimize(OLD[name])(), 5, 4)
    trained = on_replicas(old_minimize(lambda: CrossReplicaOptimizer(OLD[name]())), 5, 4)
    for got, wanted in zip(trained, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)


def test_accumulation_over_replicas_trains_as_the_whole_batch() -> None:
    # Three batches make an update: two updates of 4 * 3 batches, where six of 4 would have been.
    def train() -> list[np.ndarray]:
        weights = parameters(7)
        optimizer = TF1.MomentumOptimizer(0.1, 0.9)
        x, y = data(7, 4)
        for part in np.split(np.arange(len(x)), 2):
            gradients = optimizer.compute_gradients(lambda part=part: loss_of(weights, x[part], y[part]), weights)
            optimizer.apply_gradients(gradients)
        return [weight.numpy() for weight in weights]

    accumulating = old_minimize(
        lambda: CrossReplicaGradientAccumulationOptimizerV2(TF1.MomentumOptimizer(0.1, 0.9), 3, reduction_method="mean")
    )
    for got, wanted in zip(on_replicas(accumulating, 7, 4), train(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.sampled_from([2, 3]))
def test_any_data_train_as_the_whole_batch(seed: int, count: int) -> None:
    expected = plainly(keras_minimize(KERAS["momentum"], 1.0)(), seed, count)
    trained = on_replicas(keras_minimize(KERAS["momentum"], 1.0 / count), seed, count)
    for got, wanted in zip(trained, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


def test_sums_are_the_same_to_the_last_bit_in_every_run(replicas: Any, each: Any) -> None:
    count = 8
    strategy = replicas(count)
    # Of all magnitudes, so that any other order of addition gives other bits.
    random = np.random.default_rng(0)
    values = (random.normal(size=(count, 1000)) * 10.0 ** random.integers(-6, 7, size=(count, 1000))).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices(values).repeat()
    with strategy.scope():
        iterator, queue = iter(dataset), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(iterator: Any, n: Any) -> None:
        for _ in tf.range(n):
            x = next(iterator)
            queue.enqueue((cross_replica_sum(x), cross_replica_mean(x)))

    for _ in range(3):
        strategy.run(program, (iterator, tf.constant(20)))
    sums, means = queue.dequeue()
    in_order = values[0].copy()
    for row in values[1:]:
        in_order += row
    assert sums.shape == (60, count, 1000)
    np.testing.assert_array_equal(sums, np.broadcast_to(in_order, sums.shape))
    np.testing.assert_array_equal(means, np.broadcast_to(means[0, 0], means.shape))
