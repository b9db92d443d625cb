"""Fixtures for tests of loops: functions that run as programs, and datasets that feed them."""

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu


@pytest.fixture
def run(strategy):
    """Returns a function that runs a Python function as a program: `run(function, *args)`."""
    return lambda function, *args: strategy.run(tf.function(function, jit_compile=True), args)


@pytest.fixture
def numbers():
    """Returns a dataset of the int32 scalars 0, 1, 2 and so on."""
    return tf.data.Dataset.range(10**6).map(lambda x: tf.cast(x, tf.int32))


@pytest.fixture
def infeed_of(strategy):
    """Returns a function that creates a started queue of a dataset: `infeed_of(dataset)`."""

    def make(dataset):
        queue = ipu.IPUInfeedQueue(dataset)
        queue.initializer  # noqa: B018  (The access starts the queue.)
        return queue

    return make
