"""What the tests of optimizers share: a small regression, its training in plain TensorFlow, and runs on replicas."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

MICRO_BATCHES = 8


@pytest.fixture(scope="session")
def regression():
    """Micro-batches of a linear regression: inputs of shape [8, 4, 3] and targets of shape [8, 4, 1]."""
    random = np.random.default_rng(7)
    inputs = random.normal(size=(MICRO_BATCHES, 4, 3)).astype(np.float32)
    targets = random.normal(size=(MICRO_BATCHES, 4, 1)).astype(np.float32)
    return inputs, targets


def squared_error(weights, x, y):
    """The loss of the regression, averaged over the batch."""
    return tf.reduce_mean((tf.matmul(x, weights) - y) ** 2)


@pytest.fixture
def plainly_trained(regression):
    """`plainly_trained(optimizer, batches, mean)` trains in eager TensorFlow.

    `batches` lists the micro-batches of each update, and `mean` says whether their losses are averaged or added.
    """

    def train(optimizer, batches, mean=False):
        inputs, targets = regression
        weights = tf.Variable(np.ones((3, 1), np.float32))
        for together in batches:
            with tf.GradientTape() as tape:
                loss = tf.add_n([squared_error(weights, inputs[at], targets[at]) for at in together])
                loss = loss / len(together) if mean else loss
            optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        return weights.numpy()

    return train


@pytest.fixture
def trained_on(replicas, regression):
    """`trained_on(count, make_optimizer)` trains on replicas: micro-batch t * count + r is that of replica r."""

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
        everywhere = results.dequeue().numpy().reshape(count, 3, 1)
        for each in (*everywhere[1:], weights.numpy()):
            np.testing.assert_array_equal(each, everywhere[0])
        return everywhere[0]

    return train
