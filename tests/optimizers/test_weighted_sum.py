"""Accumulated gradients are the sum, the mean or the running mean, and all three accumulations come to the same numbers."""

import types

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.keras.optimizers.accumulated_step import StepAccumulation, accumulated_step
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod as Method
from tensorflow_ipu.optimizers.parts import Accumulator, accumulated
from tensorflow_ipu.pipelining.training.optimizer import Accumulation

GRADIENTS = np.random.default_rng(3).normal(size=(7, 5)).astype(np.float32)
EXPECTED = {Method.SUM: GRADIENTS.sum(0), Method.MEAN: GRADIENTS.mean(0), Method.RUNNING_MEAN: GRADIENTS.mean(0)}
# Of a sum of seven numbers of about 1, each step of which rounds.
TOLERANCE = {tf.float32: 4e-6, tf.float16: 2e-2, tf.bfloat16: 0.15}


def by_function(method, dtype):
    total = tf.zeros([5], dtype)
    for index, gradient in enumerate(GRADIENTS):
        total = accumulated(total, tf.constant(gradient), index, len(GRADIENTS), method)
    return total


def by_optimizer(method, dtype, make=tf.identity):
    """As the wrappers of optimizers do, in variables."""
    counter, total, found = tf.Variable(0), tf.Variable(tf.zeros([5], dtype)), tf.Variable(tf.zeros([5], dtype))
    accumulator = Accumulator(counter, [total], len(GRADIENTS), method)

    @tf.function
    def step(gradient):
        accumulator.step([make(gradient)], lambda reduced: found.assign(reduced[0], read_value=False))

    for gradient in GRADIENTS:
        step(tf.constant(gradient))
    return found.value()


def by_sparse_optimizer(method, dtype):
    """The same, with gradients of rows."""
    return by_optimizer(method, dtype, lambda values: tf.IndexedSlices(values, tf.range(5), tf.constant([5])))


def by_keras_step(method, dtype):
    """As a Keras model with gradient accumulation does."""
    weight, given, found = tf.Variable(tf.zeros([5])), iter(GRADIENTS), []
    optimizer = types.SimpleNamespace(apply_gradients=lambda pairs: found.extend(gradient for gradient, _ in pairs))
    model = types.SimpleNamespace(name="model", trainable_variables=[weight], optimizer=optimizer)
    step = accumulated_step(
        model, lambda: optimizer.apply([tf.constant(next(given))]), StepAccumulation(len(GRADIENTS), method, dtype)
    )
    step()
    return found[0]


def by_pipeline(method, dtype):
    """As a pipeline does, whose count may be a tensor."""
    accumulation = Accumulation(method, tf.constant(len(GRADIENTS)), dtype)
    totals = accumulation.zeros([tf.Variable(tf.zeros([5]))])
    for index, gradient in enumerate(GRADIENTS):
        totals = accumulation.add(totals, [tf.constant(gradient)], tf.constant(index))
    return totals[0]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("method", Method)
def test_every_accumulation_comes_to_the_numbers_of_the_one_function(method, dtype):
    result = by_function(method, dtype)
    assert result.dtype == dtype
    np.testing.assert_allclose(tf.cast(result, tf.float32), EXPECTED[method], atol=TOLERANCE[dtype])
    for other in (by_optimizer, by_sparse_optimizer, by_keras_step, by_pipeline):
        np.testing.assert_array_equal(other(method, dtype), result, err_msg=other.__name__)


@pytest.mark.parametrize(("dtype", "many"), [(tf.float16, 70_000), (tf.bfloat16, 1000)])
def test_weights_are_exact_where_the_type_of_the_total_cannot_count_so_far(dtype, many):
    zero, one = tf.zeros([], dtype), tf.ones([], dtype)
    assert float(accumulated(one, zero, many, many + 1, Method.RUNNING_MEAN)) == 1  # many / (many + 1), rounded
    for method in (Method.RUNNING_MEAN, Method.MEAN):
        added = float(accumulated(zero, one, many - 1, many, method))
        assert added == pytest.approx(1 / many, rel=2**-7)


def test_a_float64_total_has_float64_weights():
    total = accumulated(tf.zeros([], tf.float64), tf.ones([], tf.float64), 2, 3, Method.MEAN)
    assert float(total) == 1 / 3
