"""Fixtures of tests of optimizers: a small regression, its training in plain TensorFlow, and on replicas."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

MICRO_BATCHES = 8


@pytest.fixture(scope="session")
def regression():
    """Returns micro-batches of a linear regression: inputs of shape [8, 4, 3] and targets of shape [8, 4, 1]."""
    random = np.random.default_rng(7)
    inputs = random.normal(size=(MICRO_BATCHES, 4, 3)).astype(np.float32)
    targets = random.normal(size=(MICRO_BATCHES, 4, 1)).astype(np.float32)
    return inputs, targets


def squared_error(weights, x, y):
    """Returns the loss of the regression, averaged over the batch."""
    return tf.reduce_mean((tf.matmul(x, weights) - y) ** 2)


@pytest.fixture
def plainly_trained(regression):
    """Returns `plainly_trained(optimizer, batches, mean)`, which trains in eager TensorFlow.

    `batches` has the list of micro-batches of each update. Their losses are averaged if `mean` is True, else added.
    """

    def train(optimizer, batches, mean=False):
        inputs, targets = regression
        weights = tf.Variable(np.ones((3, 1), np.float32))
        for micro_batches in batches:
            with tf.GradientTape() as tape:
                loss = tf.add_n([squared_error(weights, inputs[index], targets[index]) for index in micro_batches])
                loss = loss / len(micro_batches) if mean else loss
            optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        return weights.numpy()

    return train


@pytest.fixture
def trained_on(replicas, regression):
    """Returns `trained_on(count, make_optimizer)`, which trains on replicas.

    Replica r gets the micro-batches t * count + r.
    """

    def train(count, make_optimizer):
        strategy = replicas(count)
        results = ipu.IPUOutfeedQueue()
        with strategy.scope():
            weights = tf.Variable(np.ones((3, 1), np.float32))
            optimizer = make_optimizer()
            batches = iter(tf.data.Dataset.from_tensor_slices(regression))

        @tf.function(jit_compile=True)
        def program(batches):
            for _ in tf.range(MICRO_BATCHES // count):
                x, y = next(batches)
                loss = lambda x=x, y=y: squared_error(weights, x, y)  # noqa: E731
                optimizer.apply_gradients(optimizer.compute_gradients(loss, [weights]))
            results.enqueue(weights.read_value())

        with strategy.scope():
            strategy.run(program, args=(batches,))
        replicated = results.dequeue().numpy().reshape(count, 3, 1)
        for copy in (*replicated[1:], weights.numpy()):
            np.testing.assert_array_equal(copy, replicated[0])
        return replicated[0]

    return train
