"""What the tests of loops share: programs of one call, and datasets that feed them."""

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu


@pytest.fixture
def run(strategy):
    """`run(function, *args)` runs a plain function as a program."""
    return lambda function, *args: strategy.run(tf.function(function, jit_compile=True), args)


@pytest.fixture
def numbers():
    """The int32 scalars 0, 1, 2 and so on."""
    return tf.data.Dataset.range(10**6).map(lambda x: tf.cast(x, tf.int32))


@pytest.fixture
def infeed_of(strategy):
    """`infeed_of(dataset)` is a queue that reads the dataset already."""

    def make(dataset):
        queue = ipu.IPUInfeedQueue(dataset)
        queue.initializer  # noqa: B018  (The access starts it.)
        return queue

    return make
